"""State kept as immutable files: one of changes for each transaction, and full images.

Five files of task 0 of the bolt `count`, after four transactions; tests/docs/test_tables.py writes and reads them.
`1-a` stands for state/count/0/00000000000000000001-a.changelog, where a is the token.

| file | follows | holds | takes in | |
|---|---|---|---|---|
| `1-a` | nothing | be=1 to=1 | | |
| `2-b` | `1-a` | be=2 | | |
| `3-c` | `2-b` | or=9 | | rolled back: no record names its token, and a sweep deletes the file |
| `3-d` | `2-b` | or=1 | | the second attempt, which COMMITTING names |
| `4-e` | nothing | be=3 or=1 to=deleted | `1-a` `2-b` `3-d` | the newest value of each key |

What opening a version reads, and where it begins:

| version | cache is at | begins with | reads | |
|---|---|---|---|---|
| `1-a` | nothing | nothing | `1-a` | |
| `3-d` | nothing | nothing | `1-a` `2-b` `3-d` | back from file to file until nothing is before it |
| `3-d` | `2-b` | the cache | `3-d` | |
| `4-e` | nothing | nothing | `4-e` | one file in place of four |
| `4-e` | `2-b` | the cache | `4-e` | final values: they apply to any version that the file takes in |
| `4-e` | `3-c` | nothing | `4-e` | the cache is not in the chain: it is built again |
"""
