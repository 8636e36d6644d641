"""The process that runs pages and examples tells of what fails, and each program finds nothing of the one before."""

FIRST = """
import sys
from pathlib import Path

assert __name__ == "__main__" and sys.modules["__main__"].__file__ == __file__ == sys.argv[0] and len(sys.argv) == 1
sys.argv.append("more")
left = 1
Path("left").write_text("x")
print("said")
print("complained", file=sys.stderr)
"""
SECOND = """
import sys
from pathlib import Path

assert list(Path().iterdir()) == [] and len(sys.argv) == 1
print(left)
"""


def test_a_program_is_told_apart_from_the_one_before_it(programs, tmp_path):
    def told(name: str, text: str) -> dict[str, object]:
        (tmp_path / name).write_text(text)
        return programs.run(tmp_path / name)

    first = told("first.py", FIRST)
    assert first == {"failure": None, "stdout": "said\n", "stderr": "complained\n", "left": ["left"]}
    second = told("second.py", SECOND)
    assert "NameError: name 'left' is not defined" in str(second["failure"])
    assert (second["stdout"], second["left"]) == ("", [])
    assert "SystemExit: 3" in str(told("third.py", "raise SystemExit(3)")["failure"])
    assert told("exits.py", "print('done')\nraise SystemExit(0)")["failure"] is None
    assert told("fourth.py", "print('is there')")["stdout"] == "is there\n"
