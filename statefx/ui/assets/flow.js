// How late results are and where that comes from; how far sources are behind; what sinks have.

import {h} from "./dom.js";
import {brief, bytes, clock, line, millis, moment, rate, secs, whole} from "./text.js";

// Of each component how old its results are, and how much of that was added in it: not in those that it reads from.
export function delays(document) {
  const {graph, components = {}} = document;
  if (!graph) return [];
  const known = (name) => { const found = (components[name] || {}).freshnessSecs; return typeof found === "number" ? found : null; };
  return graph.components.filter((each) => known(each.name) !== null).map((each) => {
    const before = graph.edges.filter((edge) => edge.to === each.name).map((edge) => [edge.from, known(edge.from)]).filter(([, late]) => late !== null);
    const worst = before.reduce((a, b) => (a === null || b[1] > a[1] ? b : a), null);
    return {name: each.name, late: known(each.name), added: known(each.name) - (worst ? worst[1] : 0), from: worst ? worst[0] : null, watermark: components[each.name].watermark};
  });
}

export function freshness(page) {
  const rows = delays(page.document);
  const holders = Object.entries(page.document.sources || {}).filter(([, each]) => each && each.eventTime && each.eventTime.heldBackBy !== undefined && !(each.eventTime.behindSecs < 0.5));
  if (!rows.length) return h("p", {class: "empty"}, "No component has event time, or none has committed a row with one.");
  const most = Math.max(0.001, ...rows.map((each) => each.late));
  return h("div", null,
    h("div", {class: "scroll rows", tabindex: "0", role: "region", "aria-label": "Freshness by component"}, h("table", {id: "fresh"},
      h("thead", null, h("tr", null, h("th", {scope: "col"}, "component"), h("th", {scope: "col"}, "behind now"), h("th", {scope: "col", class: "n"}, "added here"), h("th", {scope: "col"}, "watermark"))),
      h("tbody", null, rows.map((each) => h("tr", {key: each.name},
        h("th", {scope: "row"}, line(each.name)),
        h("td", {class: "wide"}, h("span", {class: "amount two"},
          h("i", {class: "before", style: {width: `${100 * Math.max(0, each.late - Math.max(0, each.added)) / most}%`}}), h("i", {class: "added", style: {width: `${100 * Math.max(0, each.added) / most}%`}}), h("span", null, secs(each.late)))),
        h("td", {class: "n", title: each.from ? `the rest comes from ${line(each.from)}` : "it reads the source"}, each.added > 0.0005 ? `+${secs(each.added)}` : "–"),
        h("td", null, clock(each.watermark))))))),
    holders.map(([name, {eventTime}]) => h("p", {key: name, class: "note"}, "Event time of ", h("strong", null, line(name)), " is held back by ", h("strong", null, line(eventTime.heldBackBy)),
      typeof eventTime.behindSecs === "number" ? `, ${secs(eventTime.behindSecs)} behind the newest` : "", typeof eventTime.silentSecs === "number" ? `, which has not moved for ${secs(eventTime.silentSecs)}` : "", ".")));
}

const SAID = new Set(["lagRecords", "lagSecs", "rateIn", "rateOut", "etaSecs", "eventTime", "partitions"]);

export function lag(page) {
  const rows = Object.entries(page.document.sources || {});
  if (!rows.length) return h("p", {class: "empty"}, "There is no source, or none has said anything yet.");
  return h("div", null, h("div", {class: "scroll rows", tabindex: "0", role: "region", "aria-label": "Lag by source"}, h("table", {id: "lags"},
    h("thead", null, h("tr", null, h("th", {scope: "col"}, "source"), ["records behind", "behind", "rows in", "rows out", "done in"].map((name) => h("th", {scope: "col", class: "n"}, name)))),
    h("tbody", null, rows.map(([name, each]) => h("tr", {key: name},
      h("th", {scope: "row"}, line(name)),
      h("td", {class: `n${each.lagRecords > 0 && each.rateIn > each.rateOut ? " warn" : ""}`}, whole(each.lagRecords)), h("td", {class: "n"}, secs(each.lagSecs)),
      h("td", {class: "n"}, rate(each.rateIn)), h("td", {class: "n"}, rate(each.rateOut)),
      h("td", {class: "n"}, each.lagRecords === 0 ? "caught up" : typeof each.etaSecs === "number" ? secs(each.etaSecs) : each.rateIn > each.rateOut ? "never, at this rate" : "–")))))),
  rows.map(([name, each]) => partitions(name, each)),
  rows.filter(([, each]) => Object.entries(each).some(([key, value]) => !SAID.has(key) && value !== null)).map(([name, each]) => h("details", {key: name}, h("summary", null, `What ${line(name)} says of itself`), facts(Object.fromEntries(Object.entries(each).filter(([key]) => !SAID.has(key)))))));
}

function partitions(name, each) {
  if (!Array.isArray(each.partitions) || !each.partitions.length || typeof each.partitions[0] !== "object") return null;
  const columns = [...new Set(each.partitions.flatMap((one) => Object.keys(one)))].slice(0, 8);
  return h("details", {key: `parts ${name}`}, h("summary", null, `${each.partitions.length} partitions of ${line(name)}`),
    h("div", {class: "scroll rows", tabindex: "0"}, h("table", null, h("thead", null, h("tr", null, columns.map((column) => h("th", {scope: "col"}, column)))),
      h("tbody", null, each.partitions.map((one, i) => h("tr", {key: i}, columns.map((column) => h("td", null, plain(one[column])))))))));
}

export function sinks(page) {
  const rows = Object.entries(page.document.sinks || {});
  if (!rows.length) return h("p", {class: "empty"}, "The topology has no sink.");
  return h("div", null, h("div", {class: "scroll rows", tabindex: "0", role: "region", "aria-label": "Sinks"}, h("table", {id: "sink-table"},
    h("thead", null, h("tr", null, h("th", {scope: "col"}, "sink"), h("th", {scope: "col"}, "state"), ["last transaction", "its rows", "its bytes", "its commit"].map((name) => h("th", {scope: "col", class: "n"}, name)))),
    h("tbody", null, rows.map(([name, each]) => h("tr", {key: name, class: each.stuckSince ? "sick" : ""},
      h("th", {scope: "row"}, line(name)),
      h("td", null, each.stuckSince ? h("em", {class: "pill bad"}, `stuck for ${secs(Math.max(0, (page.now() - moment(each.stuckSince)) / 1000))}`) : h("em", {class: "pill ok"}, each.txid ? "published" : "nothing yet")),
      h("td", {class: "n"}, whole(each.txid)), h("td", {class: "n"}, whole(each.rows)), h("td", {class: "n"}, bytes(each.bytes)), h("td", {class: "n"}, millis(each.commitMs))))))),
  rows.filter(([, each]) => each.why).map(([name, each]) => h("p", {key: name, class: "failed why-not"}, h("strong", null, line(name)), ` ${each.why}`)));
}

export function plain(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "number") return Number.isInteger(value) ? whole(value) : brief(value);
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

export function facts(mapping) {
  const rows = Object.entries(mapping || {});
  return h("dl", {class: "facts long"}, rows.map(([name, value]) => h("div", {key: name}, h("dt", null, line(name)), h("dd", null, plain(value)))));
}
