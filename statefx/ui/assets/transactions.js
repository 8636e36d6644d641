// The last sixty transactions as a strip, and one of them in words and as a Gantt chart by task.

import {h} from "./dom.js";
import {clock, line, many, millis, moment, whole} from "./text.js";

const ORDER = ["run", "wait", "hooks", "commit", "log"];
const MEANING = {run: "the attempt, until its tasks have acked", wait: "for the transactions before it", hooks: "preCommit, stores and sinks", commit: "from the decision to its end", log: "the records of the log"};

const phaseClass = (name) => (ORDER.includes(name) ? `phase-${name}` : "phase-other");

const phases = (each) => Object.entries(each.durationMs || {}).filter(([, ms]) => ms > 0)
  .sort(([a], [b]) => (ORDER.indexOf(a) + 9) % 9 - (ORDER.indexOf(b) + 9) % 9);

export const took = (each) => {
  const sum = phases(each).reduce((total, [, ms]) => total + ms, 0);
  const [began, ended] = [moment(each.began), moment(each.ended)];
  return sum || (began !== null && ended !== null ? ended - began : 0);
};

export const nameOf = (each) => `${each.txid}/${each.attempt}${each.outcome === "restored" ? `/${each.ended}` : ""}`;

const outcomeClass = (outcome) => ({committed: "ok", running: "running", restored: "other", "given up": "other"}[outcome] || "bad");

export function median(numbers) {
  const sorted = [...numbers].sort((a, b) => a - b);
  return sorted.length ? sorted[Math.floor(sorted.length / 2)] : null;
}

function sentence(each) {
  const parts = [`Transaction ${each.txid}, attempt ${each.attempt}: ${each.outcome}`];
  if (each.ended) parts.push(`at ${clock(each.ended)}`);
  else if (each.began) parts.push(`since ${clock(each.began)}`);
  parts.push(many(each.rows || 0, "row"));
  return parts.join(", ");
}

export function strip(page) {
  const all = page.document.transactions || [];
  if (!all.length) return h("p", {class: "empty"}, "No transaction has begun yet.");
  const lengths = all.filter((each) => each.outcome !== "running").map(took);
  // The highest is the ninth decile and a half more: one that hung for a minute must not make all others a line.
  const sorted = [...lengths].sort((a, b) => a - b);
  const most = Math.max(1, Math.min(sorted[sorted.length - 1] || 1, 2.5 * (sorted[Math.floor(sorted.length * 0.9)] || 1)));
  const chosen = all.find((each) => nameOf(each) === page.transaction) || all[all.length - 1];
  const present = [...new Set(all.flatMap((each) => phases(each).map(([name]) => name)))].sort((a, b) => ORDER.indexOf(a) - ORDER.indexOf(b));
  const go = (event) => {
    const here = all.findIndex((each) => nameOf(each) === page.transaction);   // by now: keys may come faster than frames
    const at = here < 0 ? all.length - 1 : here;
    const next = {ArrowLeft: Math.max(0, at - 1), ArrowRight: Math.min(all.length - 1, at + 1), Home: 0, End: all.length - 1}[event.key];
    if (next === undefined) return;
    event.preventDefault();
    page.chooseTransaction(next === all.length - 1 ? null : nameOf(all[next]));
    event.currentTarget.children[next].focus();
  };
  return h("div", {class: "strip"},
    h("div", {class: "plot"},
      h("div", {class: "axis", "aria-hidden": "true"}, h("span", null, millis(most)), h("span", null, millis(most / 2)), h("span", null, "0")),
      h("div", {class: "bars", role: "listbox", "aria-label": `The last ${all.length} transactions, the oldest first`, "aria-orientation": "horizontal", onkeydown: go},
        all.map((each) => {
          const ms = took(each);
          const share = Math.min(1, ms / most);
          return h("button", {
            key: nameOf(each), role: "option", class: `tx ${outcomeClass(each.outcome)}${ms > most ? " over" : ""}`, tabindex: each === chosen ? "0" : "-1",
            "aria-selected": each === chosen ? "true" : "false", "aria-label": `${sentence(each)}, ${millis(ms)}`, title: `${sentence(each)}, ${millis(ms)}${each.reason ? `\n${line(each.reason)}` : ""}`,
            "data-txid": each.txid, onclick: () => page.chooseTransaction(nameOf(each)),
          }, h("span", {class: "stack", style: {height: `${Math.max(2, share * 100)}%`}},
            each.outcome === "committed" && phases(each).length ? phases(each).map(([name, part]) => h("i", {class: phaseClass(name), style: {"flex-grow": String(part)}})) : h("i", {class: "whole", style: {"flex-grow": "1"}})));
        }))),
    h("div", {class: "under"},
      h("span", null, clock(all[0].ended || all[0].began)), h("span", null, clock(all[all.length - 1].ended || all[all.length - 1].began))),
    h("ul", {class: "legend"}, present.map((name) => h("li", {title: MEANING[name] || name}, h("i", {class: phaseClass(name)}), name)),
      all.some((each) => outcomeClass(each.outcome) === "bad") && h("li", null, h("i", {class: "phase-bad"}), "rolled back"),
      all.some((each) => each.outcome === "running") && h("li", null, h("i", {class: "phase-running"}), "running")),
    h("div", {class: `one ${outcomeClass(chosen.outcome)}`, "aria-live": "off", id: "chosen"},
      h("p", null, h("strong", null, `Transaction ${chosen.txid}`), chosen.attempt ? `, attempt ${chosen.attempt}` : "", h("em", {class: `pill ${outcomeClass(chosen.outcome)}`}, chosen.outcome),
        ` ${many(chosen.rows || 0, "row")}`, chosen.began ? `, began ${clock(chosen.began)}` : "", took(chosen) ? `, ${millis(took(chosen))}` : ""),
      phases(chosen).length > 0 && h("p", {class: "soft"}, phases(chosen).map(([name, ms]) => `${name} ${millis(ms)}`).join(" · ")),
      chosen.phase && h("p", {class: "soft"}, `now ${chosen.phase}`, chosen.waitsFor && chosen.waitsFor.length ? `, waits for ${chosen.waitsFor.map(line).join(", ")}` : ""),
      chosen.reason && h("p", {class: "reason"}, chosen.reason)));
}

// ---- Gantt

const ROWS = 40;

const STEPS = ["restore", "open", "execute", "finish"];   // a colour for each word, whichever of them a transaction has

const stepClass = (name) => (STEPS.includes(name) ? `step-${name}` : "step-other");

// Which transaction is shown by task: the one that was chosen in the strip, or the last one.
function worked(page) {
  const last = (page.document.tasksOf || [])[0];
  const isThere = (page.document.transactions || []).some((each) => nameOf(each) === page.transaction);
  if (!isThere || (last && nameOf(last) === page.transaction)) return last;
  return page.worked && page.worked.of === page.transaction ? page.worked : null;
}

export function gantt(page) {
  const last = worked(page);
  if (last === null) return h("p", {class: "empty"}, "…");
  if (last && last.error) return h("p", {class: "empty"}, `Nothing is known of the tasks of transaction ${page.transaction.replace("/", ", attempt ")}: ${last.error}.`);
  if (!last || !last.tasks || !last.tasks.length) {
    return h("p", {class: "empty"}, "The driver tells the times of tasks when a transaction has been committed.");
  }
  const all = [...last.tasks];
  const begin = Math.min(...all.map((each) => each.beganMs));
  const end = Math.max(begin + 1, ...all.map((each) => each.endedMs));
  const order = new Map(((page.document.graph || {}).components || []).map((each, i) => [each.name, [each.level || 0, i]]));
  const slowest = [...all].sort((a, b) => b.endedMs - b.beganMs - (a.endedMs - a.beganMs));
  const kept = new Set(slowest.slice(0, ROWS));
  const rows = all.filter((each) => kept.has(each)).sort((a, b) => {
    const [one, two] = [order.get(a.component) || [99, 99], order.get(b.component) || [99, 99]];
    return one[0] - two[0] || one[1] - two[1] || a.task - b.task;
  });
  const place = (from, to) => ({left: `${100 * (from - begin) / (end - begin)}%`, width: `${Math.max(0.25, 100 * (to - from) / (end - begin))}%`});
  const names = [...new Set(all.flatMap((each) => (each.phases || []).map(([name]) => name)))];
  return h("div", {class: "gantt"},
    h("p", {class: "soft"}, `Transaction ${last.txid}: ${many(last.count || all.length, "task")}, ${millis(end - begin)}`, (last.count || all.length) > rows.length ? `; the ${rows.length} that worked longest` : "",
      ". A bar ends when the driver heard of the task; how long it worked stands before that in one piece."),
    h("div", {class: "scroll chart", tabindex: "0", role: "region", "aria-label": `Tasks of transaction ${last.txid}`},
      h("div", {class: "scale", "aria-hidden": "true"}, [0, 0.25, 0.5, 0.75, 1].map((part) => h("span", {style: {left: `${part * 100}%`}}, millis((end - begin) * part)))),
      rows.map((each) => h("div", {key: `${each.component}/${each.task}`, class: "lane", title: line(`${each.component}/${each.task}: ${(each.phases || []).map(([name, from, to]) => `${name} ${millis(to - from)}`).join(", ")}`)},
        h("span", {class: "who"}, line(each.component), h("small", null, `/${each.task}`)),
        h("span", {class: "track"},
          h("i", {class: "extent", style: place(each.beganMs, each.endedMs)}),
          (each.phases || []).map(([name, from, to]) => h("i", {class: `part ${stepClass(name)}`, style: place(from, to)})),
          h("span", {class: "visually-hidden"}, millis(each.endedMs - each.beganMs)))))),
    h("ul", {class: "legend"}, names.map((name) => h("li", null, h("i", {class: stepClass(name)}), name))));
}

export function attempts(page) {
  const found = page.looks.transactions;
  if (!found) return null;
  if (found.error) return h("p", {class: "failed"}, found.error);
  return h("div", {class: "scroll rows", tabindex: "0", role: "region", "aria-label": "Attempts of the log"}, h("table", null,
    h("thead", null, h("tr", null, ["transaction", "outcome", "generation", "began", "took", "rows", "reason"].map((name) => h("th", {scope: "col", class: name === "took" || name === "rows" ? "n" : ""}, name)))),
    h("tbody", null, found.attempts.map((each) => h("tr", {key: `${nameOf(each)}/${each.generation}/${each.began}`},
      h("th", {scope: "row"}, each.attempt ? `${each.txid}, attempt ${each.attempt}` : each.txid), h("td", null, h("em", {class: `pill ${outcomeClass(each.outcome)}`}, each.outcome)),
      h("td", null, each.generation), h("td", null, clock(each.began)), h("td", {class: "n"}, took(each) ? millis(took(each)) : "–"), h("td", {class: "n"}, whole(each.rows)), h("td", {class: "reason"}, each.reason || ""))))));
}
