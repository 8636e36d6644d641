// State and the look-up of a key, errors and dead letters, savepoints and generations, settings, the support bundle.

import {h} from "./dom.js";
import {facts} from "./flow.js";
import {bytes, clock, line, many, whole} from "./text.js";

export function state(page) {
  const found = page.looks.state;
  const {components = {}} = page.document;
  if (!found) return h("p", {class: "empty"}, "…");
  if (found.error) return h("p", {class: "failed"}, found.error);
  if (!found.bolts.length) return h("p", {class: "empty"}, "No bolt keeps state.");
  const look = page.lookup;
  const chosen = (found.bolts.find((each) => each.component === look.component) || found.bolts[0]).component;
  const maps = page.maps[chosen] || [];
  return h("div", null,
    h("div", {class: "scroll rows", tabindex: "0", role: "region", "aria-label": "State by bolt"}, h("table", {id: "bolts"},
      h("thead", null, h("tr", null, h("th", {scope: "col"}, "bolt"), h("th", {scope: "col"}, "kept in"), ["bytes", "keys", "tasks", "skew"].map((name) => h("th", {scope: "col", class: "n"}, name)))),
      h("tbody", null, found.bolts.map((each) => {
        const measured = components[each.component] || {};
        return h("tr", {key: each.component}, h("th", {scope: "row"}, line(each.component)), h("td", null, each.provider),
          h("td", {class: "n"}, bytes(measured.stateBytes ?? each.bytes)), h("td", {class: "n"}, whole(measured.stateKeys)), h("td", {class: "n"}, each.tasks),
          h("td", {class: `n${measured.skew && measured.skew.ratio > 3 ? " warn" : ""}`, title: measured.skew ? `task ${measured.skew.task} has had most rows` : ""}, measured.skew ? `×${measured.skew.ratio.toFixed(1)}` : "–"));
      })))),
    h("form", {class: "lookup", role: "search", "aria-label": "Look up a key", onsubmit: (event) => { event.preventDefault(); page.lookUp(new FormData(event.target)); }},
      h("label", {key: "bolt"}, h("span", null, "Bolt"), h("select", {name: "component", onchange: (event) => { look.component = event.target.value; page.askMaps(look.component); page.draw(); }},
        found.bolts.map((each) => h("option", {key: each.component, value: each.component}, line(each.component))))),
      maps.length > 0 && h("label", {key: "map"}, h("span", null, "In"), h("select", {name: "map"}, h("option", {value: ""}, "its own keys"), maps.map((map) => h("option", {key: map, value: map}, line(map))))),
      h("label", {key: "key", class: "grow"}, h("span", null, "Key"), h("input", {name: "key", onfocus: () => page.askMaps(chosen), placeholder: "spark, 7, or [\"a\", 1]", autocomplete: "off", spellcheck: "false", required: true})),
      h("button", {class: "main", disabled: look.busy}, look.busy ? "Looking…" : "Look up")),
    h("div", {"aria-live": "polite", id: "found"}, answer(look.answer)));
}

function answer(found) {
  if (!found) return h("p", {class: "soft"}, "The key as JSON; what is no JSON is a text. Shown are its value and the files and transactions that it comes from.");
  if (found.error) return h("p", {class: "failed"}, found.error);
  if (!found.rows.length) return h("p", {class: "note"}, `No task has ${found.key}, and no file.`);
  const now = found.rows.filter((each) => each.kind === "now");
  return h("div", null,
    now.map((each, i) => h("div", {key: i, class: "value"}, h("p", {class: "soft"}, `${found.key} in task ${each.task}, at transaction ${found.txid}`), h("pre", {tabindex: "0"}, each.deleted ? "not there" : each.value))),
    h("div", {class: "scroll rows", tabindex: "0", role: "region", "aria-label": "Where it comes from"}, h("table", null,
      h("thead", null, h("tr", null, ["what", "transactions", "value", "file"].map((name) => h("th", {scope: "col"}, name)))),
      h("tbody", null, found.rows.filter((each) => each.kind !== "now").map((each, i) => h("tr", {key: i}, h("th", {scope: "row"}, each.kind), h("td", null, each.first === each.txid || each.first === null ? each.txid : `${each.first} to ${each.txid}`),
        h("td", {class: "code"}, each.deleted ? "deleted" : each.value), h("td", {class: "code"}, each.path)))))));
}

export function problems(page) {
  const {exceptions = [], components = {}} = page.document;
  const aside = Object.entries(components).filter(([, each]) => each.setAside);
  const late = Object.entries(components).filter(([, each]) => each.late);
  return h("div", null,
    h("h3", null, "Exceptions"),
    exceptions && exceptions.length ? h("ol", {class: "errors", id: "exceptions"}, [...exceptions].reverse().map((each, i) => h("li", {key: `${each.at}${each.component}${i}`},
      h("details", {open: i === 0}, h("summary", null, h("strong", null, line(each.type || "error")), each.component ? h("span", {class: "soft"}, line(` in ${each.component}${each.task === null || each.task === undefined ? "" : `/${each.task}`}`)) : null,
        each.count > 1 ? h("em", {class: "pill bad"}, `×${each.count}`) : null, h("time", null, clock(each.at)), h("p", {class: "message"}, line(each.message || ""))),
      each.traceback ? h("pre", {tabindex: "0"}, each.traceback) : null)))) : h("p", {class: "empty"}, "None."),
    h("h3", null, "Rows set aside"),
    aside.length ? h("div", {id: "aside"}, h("p", {class: "soft"}, "Rows of which a bolt raised an error, and went on without them."), aside.map(([name, each]) => h("details", {
      key: name, ontoggle: (event) => { if (event.target.open) page.askHeld(name); },
    }, h("summary", null, h("strong", null, line(name)), ` ${many(each.setAside, "row")}`), held(page.held[name])))) : h("p", {class: "empty"}, "None."),
    h("h3", null, "Late rows"),
    late.length ? h("ul", {class: "plain", id: "late"}, late.map(([name, each]) => h("li", {key: name}, h("strong", null, line(name)), ` ${many(each.late, "row")} came too late`))) : h("p", {class: "empty"}, "None."));
}

function held(found) {
  if (!found) return h("p", {class: "empty"}, "…");
  if (found.error) return h("p", {class: "soft"}, found.error);
  if (!found.keys.length) return h("p", {class: "empty"}, "No key waits in quarantine.");
  return h("div", {class: "scroll rows", tabindex: "0"}, h("table", null,
    h("thead", null, h("tr", null, h("th", {scope: "col"}, "key in quarantine"), h("th", {scope: "col", class: "n"}, "rows that wait"), h("th", {scope: "col", class: "n"}, "since transaction"), h("th", {scope: "col"}, "error"))),
    h("tbody", null, found.keys.map((each, i) => h("tr", {key: i}, h("th", {scope: "row", class: "code"}, each.key), h("td", {class: "n"}, whole(each.rows)), h("td", {class: "n"}, each.txid), h("td", {class: "reason"}, each.error))))),
  found.more ? h("p", {class: "soft"}, `and more than these ${found.keys.length}: statefx quarantined CHECKPOINT ${line(found.component)}`) : null);
}

const WHAT = {GENERATION: "start", RESCALED: "rescaled", MIGRATED: "migrated", RESTORED: "gone back", PINNED: "savepoint", UNPINNED: "savepoint deleted"};

export function history(page) {
  const found = page.looks.history;
  if (!found) return h("p", {class: "empty"}, "…");
  if (found.error) return h("p", {class: "failed"}, found.error);
  return h("div", {class: "columns"},
    h("div", null, h("h3", null, "Savepoints"), found.savepoints.length ? table("savepoints", ["name", "transaction", "taken", "bytes"], found.savepoints.map((each) => [each.name, each.txid, clock(each.time), bytes(each.bytes)])) : h("p", {class: "empty"}, "None.")),
    h("div", null, h("h3", null, "Generations"), found.generations.length ? table("generations", ["generation", "transactions", "committed", "rolled back", "began"], found.generations.map((each) => [each.generation, each.first === each.last ? each.first : `${each.first} to ${each.last}`, whole(each.committed), whole(each.rolledBack), clock(each.began)])) : h("p", {class: "empty"}, "None.")),
    h("div", {class: "all"}, h("h3", null, "Changes"), found.changes.length ? table("changes", ["when", "what", "record"], found.changes.map((each) => [clock(each.at), WHAT[each.record] || each.record, each.says])) : h("p", {class: "empty"}, "None since the log was last folded.")));
}

function table(id, header, rows) {
  return h("div", {class: "scroll rows", tabindex: "0"}, h("table", {id}, h("thead", null, h("tr", null, header.map((name) => h("th", {scope: "col"}, name)))),
    h("tbody", null, rows.map((row, i) => h("tr", {key: i}, row.map((cell, column) => h(column ? "td" : "th", column ? null : {scope: "row"}, cell)))))));
}

// By which statefx tells whether the driver's process runs: they say nothing to people.
const OURS = new Set(["began", "machine"]);

// As it is written in a program: a port has no thousands.
const written = (value) => (value === null || value === undefined ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value));

export function settings(page) {
  const {config, driver, checkpoint, lineage, startedAt} = page.document;
  return h("div", null,
    facts({checkpoint, lineage, started: clock(startedAt), ...Object.fromEntries(Object.entries(driver || {}).filter(([name]) => !OURS.has(name)).map(([name, value]) => [name, String(value)]))}),
    h("h3", null, "Settings that are not the default"),
    config && Object.keys(config).length ? h("dl", {class: "facts long", id: "config"}, Object.entries(config).map(([name, value]) => h("div", {key: name}, h("dt", {class: "code"}, line(name)), h("dd", {class: "code"}, written(value))))) : h("p", {class: "empty"}, "All settings have their defaults."));
}

export function support(page) {
  return h("div", null,
    h("p", null, "One file with all of this, and the driver's last lines of log, for whoever helps. No row, key or value is in it, and no secret; texts that might quote one are left out."),
    h("a", {class: "main", href: `${page.live.base}/bundle`, download: true}, "Download the support bundle"));
}
