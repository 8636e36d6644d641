// The graph, the table of components beside it, and one component's tasks. Where and how components and edges are drawn
// comes from statefx/topology/drawing.py, once; here they get their figures.

import {h} from "./dom.js";
import {brief, bytes, clock, line, many, millis, percent, rate, secs, whole} from "./text.js";

export const ACTIVITIES = ["busy", "blocked", "idle", "restoring", "committing"];

const MEANING = {
  busy: "its own code runs",
  blocked: "its output waits for those after it",
  idle: "it waits for rows",
  restoring: "its state is opened",
  committing: "it commits",
};

export function shares(activity) {
  if (!activity) return null;
  const found = ACTIVITIES.map((name) => [name, activity[name] || 0]).filter(([, share]) => share > 0.0005);
  return found.length ? found : null;
}

export function activityBar(activity, label) {
  const found = shares(activity);
  if (!found) return h("span", {class: "none"}, "–");
  const said = found.map(([name, share]) => `${name} ${percent(share)}`).join(", ");
  return h("span", {class: "bar", role: "img", "aria-label": label ? `${label}: ${said}` : said, title: said},
    found.map(([name, share]) => h("i", {class: `fill ${name}`, style: {width: `${share * 100}%`}})));
}

function said(component, measured, source) {
  const parts = [`${component.name}, ${component.kind} ${component.operator || ""}, ${many(component.tasks || 1, "task")}`];
  for (const [name, share] of shares(measured.activity) || []) parts.push(`${name} ${percent(share)}`);
  if (measured.rowsInPerSec !== undefined) parts.push(`${brief(measured.rowsInPerSec)} rows a second in`);
  if (measured.stateBytes) parts.push(`${bytes(measured.stateBytes)} of state`);
  if (source && source.lagRecords) parts.push(`${whole(source.lagRecords)} records behind`);
  return line(parts.join(", "));
}

const isInput = (component) => component.kind === "stream" || component.kind === "spout";

const cut = (text, room) => (text.length > room ? `${text.slice(0, room - 1)}…` : text);

function node(place, component, measured, source, page) {
  const {x, w, middle} = place;
  const inner = w - 28;
  const room = Math.floor(inner / 7.4);
  const found = shares(measured.activity);
  const most = found ? found.reduce((a, b) => (b[1] > a[1] ? b : a)) : null;
  const figures = [rate(isInput(component) ? measured.rowsOutPerSec : measured.rowsInPerSec)];
  if (measured.stateBytes) figures.push(bytes(measured.stateBytes));
  if (source && source.lagRecords) figures.push(`lag ${brief(source.lagRecords)}`);
  const chosen = page.component === component.name;
  let at = x + 14;
  return h("g", {
    key: component.name, class: `node ${component.kind}${chosen ? " chosen" : ""}`, role: "button", "data-component": component.name,
    tabindex: component.name === page.focus ? "0" : "-1", "aria-pressed": chosen ? "true" : "false",
    "aria-label": said(component, measured, source), onclick: () => page.choose(component.name),
  },
  h("title", null, said(component, measured, source)),
  h("path", {class: "box", d: place.outline}),
  most && h("path", {class: `tint fill ${most[0]}`, d: place.outline, "fill-opacity": (0.05 + 0.2 * most[1]).toFixed(2)}),
  place.inner && h("path", {class: "lid", d: place.inner}),
  h("text", {class: "name", x: x + 14, y: middle - 12}, place.title),
  h("text", {class: "below", x: x + 14, y: middle + 3}, place.below),
  h("text", {class: "figures", x: x + 14, y: middle + 18}, cut(figures.join(" · "), room + 2)),
  found && h("g", {class: "shares"}, found.map(([name, share]) => {
    const part = h("rect", {class: `fill ${name}`, x: at, y: middle + 23, width: inner * share, height: 3.5});
    at += inner * share;
    return part;
  })));
}

function edge(route, measured) {
  const [x, y] = route.end;
  const label = route.stream === "default" ? "" : line(route.stream);
  const flowing = measured && measured.rowsPerSec ? `${brief(measured.rowsPerSec)}/s` : "";
  const text = cut([label, flowing].filter(Boolean).join(" "), 22);
  return h("g", {key: `${route.from}\n${route.to}\n${route.stream}`, class: `edge${flowing ? "" : " still"}`, "data-from": route.from, "data-to": route.to, "data-stream": route.stream},
    h("title", null, line(`${route.from} → ${route.to}, stream ${route.stream}${measured ? `: ${brief(measured.rowsPerSec)} rows a second, ${whole(measured.rows)} rows` : ""}`)),
    h("path", {class: "way", d: route.line}),
    h("path", {class: "head", d: route.head}),
    text && h("text", {class: "label", x: x - 9, y: y - 4}, text));
}

export function graph(page) {
  const {graph: wanted, layout, components = {}, sources = {}, edges = []} = page.document;
  if (!wanted || !layout) return h("p", {class: "empty"}, "No driver has said which components there are.");
  const known = new Map(wanted.components.map((each) => [each.name, each]));
  const rates = new Map(edges.map((each) => [`${each.from}\n${each.to}\n${each.stream}`, each]));
  if (!known.has(page.focus)) page.focus = wanted.components.length ? wanted.components[0].name : null;
  const least = Math.min(1, 0.62);
  return h("div", {class: "scroll graph", tabindex: "-1"},
    h("svg", {
      viewBox: `0 0 ${layout.width} ${layout.height}`, role: "group", "aria-label": "Graph of components; arrow keys go from one to the next",
      style: {width: "100%", "min-width": `${Math.round(layout.width * least)}px`, "max-width": `${Math.round(layout.width * 1.25)}px`},
      onkeydown: (event) => walk(event, layout, page),
    },
    layout.edges.map((route) => edge(route, rates.get(`${route.from}\n${route.to}\n${route.stream}`))),
    layout.nodes.filter((place) => known.has(place.name)).map((place) => node(place, known.get(place.name), components[place.name] || {}, sources[place.name], page))));
}

function walk(event, layout, page) {
  if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    page.choose(page.focus);
    return;
  }
  const ahead = {ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1]}[event.key];
  const here = layout.nodes.find((each) => each.name === page.focus);
  if (!ahead || !here) return;
  event.preventDefault();
  let best = null;
  for (const each of layout.nodes) {
    const dx = each.x + each.w / 2 - here.x - here.w / 2;
    const dy = each.y + each.h / 2 - here.y - here.h / 2;
    const along = dx * ahead[0] + dy * ahead[1];
    const beside = Math.abs(dx * ahead[1]) + Math.abs(dy * ahead[0]);
    if (along > 1 && (best === null || along + 2 * beside < best.far)) best = {name: each.name, far: along + 2 * beside};
  }
  if (!best) return;
  page.focus = best.name;
  page.draw();
  for (const each of event.currentTarget.querySelectorAll("g.node")) {
    if (each.dataset.component === best.name) each.focus();
  }
}

export function legend() {
  return h("ul", {class: "legend"}, ACTIVITIES.map((name) => h("li", {title: MEANING[name]}, h("i", {class: `fill ${name}`}), name)));
}

// ---- the table

const COLUMNS = [
  ["component", (c) => c.name, null],
  ["time", (c) => (c.activity || {}).busy, null],
  ["in", (c) => (isInput(c) ? null : c.rowsInPerSec), rate],
  ["out", (c) => (c.kind === "sink" ? null : c.rowsOutPerSec), rate],
  ["state", (c) => c.stateBytes, bytes],
  ["behind", (c) => c.freshnessSecs, secs],
  ["skew", (c) => (c.skew || {}).ratio, (v) => (typeof v === "number" ? `×${v.toFixed(1)}` : "–")],
  ["late", (c) => c.late, (v) => (v ? whole(v) : "–")],
  ["set aside", (c) => c.setAside, (v) => (v ? whole(v) : "–")],
];

const HINTS = {
  in: "rows a second that it receives", out: "rows a second that it emits", state: "bytes that a worker without caches reads to restore it",
  behind: "now minus the event time of what is committed", skew: "the largest of its tasks' rows over their mean",
  late: "rows that came too late, since the driver began", "set aside": "rows of which it raised an error, and went on: dead letters among them",
  time: "how its tasks spent the last seconds: sorted by busy",
};

export function componentTable(page) {
  const {graph: wanted, components = {}} = page.document;
  if (!wanted) return null;
  const filter = (page.filter || "").toLowerCase();
  let rows = wanted.components.map((each, order) => ({order, ...each, ...(components[each.name] || {}), name: each.name}));
  if (filter) rows = rows.filter((each) => `${each.name} ${each.operator} ${each.kind}`.toLowerCase().includes(filter));
  const sort = page.sort;
  if (sort) {
    const value = COLUMNS.find(([name]) => name === sort.by)[1];
    const empty = (v) => v === null || v === undefined;
    rows.sort((a, b) => {
      const [one, two] = [value(a), value(b)];
      if (empty(one) || empty(two)) return empty(one) - empty(two) || a.order - b.order;
      return (one < two ? -1 : one > two ? 1 : a.order - b.order) * (sort.down ? -1 : 1);
    });
  }
  return h("div", {class: "tabled"},
    wanted.components.length > 12 && h("label", {class: "filter"}, h("span", null, "Filter"),
      h("input", {type: "search", placeholder: `${wanted.components.length} components`, oninput: (event) => { page.filter = event.target.value; page.draw(); }})),
    h("div", {class: "scroll rows", tabindex: "0", role: "region", "aria-label": "Table of components"},
      h("table", {id: "components"},
        h("thead", null, h("tr", null, COLUMNS.map(([name]) => h("th", {
          scope: "col", class: name === "component" || name === "time" ? "" : "n",
          "aria-sort": sort && sort.by === name ? (sort.down ? "descending" : "ascending") : "none",
        }, h("button", {class: "sorter", title: HINTS[name], onclick: () => page.sortBy(name)}, name, h("b", {"aria-hidden": "true"}, sort && sort.by === name ? (sort.down ? "↓" : "↑") : "")))))),
        h("tbody", null, rows.map((each) => h("tr", {key: each.name, class: page.component === each.name ? "chosen" : ""},
          h("th", {scope: "row"}, h("button", {class: "link", onclick: () => page.choose(each.name), "aria-expanded": page.component === each.name ? "true" : "false"}, line(each.name)),
            h("small", null, line(`${each.operator || each.kind} ×${each.tasks || 1}`))),
          h("td", {class: "wide"}, activityBar(each.activity, each.name)),
          COLUMNS.slice(2).map(([name, value, show]) => h("td", {class: `n${(name === "late" || name === "set aside") && value(each) ? " warn" : ""}${name === "skew" && value(each) > 3 ? " warn" : ""}`}, show(value(each))))))))));
}

// ---- one component

export function details(page) {
  const name = page.component;
  if (name === null) return null;
  const {graph: wanted, components = {}} = page.document;
  const component = wanted && wanted.components.find((each) => each.name === name);
  if (!component) return null;
  const measured = components[name] || {};
  const tasks = page.tasks && page.tasks.component === name ? page.tasks.tasks : null;
  const most = tasks ? Math.max(1, ...tasks.map((each) => each.rowsIn || 0)) : 1;
  const into = wanted.edges.filter((each) => each.to === name);
  const out = wanted.edges.filter((each) => each.from === name);
  return h("section", {class: "details", "aria-label": `Component ${line(name)}`, id: "details"},
    h("header", null,
      h("h3", null, line(name), h("small", null, line(`${component.kind} ${component.operator || ""}`))),
      h("button", {class: "close", "aria-label": "Close", onclick: () => page.choose(null)}, "×")),
    h("dl", {class: "facts"},
      fact("Reads from", into.length ? into.map((each) => line(`${each.from}${each.stream === "default" ? "" : ` (${each.stream})`}, ${each.grouping}`)).join("; ") : "its source"),
      fact("Goes to", out.length ? [...new Set(out.map((each) => line(each.to)))].join(", ") : "nobody"),
      component.provider && fact("State", `${component.provider}, ${bytes(measured.stateBytes)}${measured.stateKeys ? `, ${whole(measured.stateKeys)} keys` : ""}`),
      fact("Rows in", whole(measured.rowsIn)), fact("Rows out", whole(measured.rowsOut)),
      measured.watermark && fact("Watermark", clock(measured.watermark))),
    tasks === null ? h("p", {class: "empty"}, "…") : tasks.length === 0 ? h("p", {class: "empty"}, "Nothing is known of its tasks yet.") :
      h("div", {class: "scroll rows tasks", tabindex: "0", role: "region", "aria-label": "Tasks"}, h("table", null,
        h("thead", null, h("tr", null, h("th", {scope: "col"}, "task"), h("th", {scope: "col"}, "time"), h("th", {scope: "col"}, "rows"), h("th", {scope: "col", class: "n"}, "rows/s"), h("th", {scope: "col", class: "n", title: "milliseconds in each second"}, "works"))),
        h("tbody", null, tasks.map((each) => h("tr", {key: each.task},
          h("th", {scope: "row"}, each.task),
          h("td", {class: "wide"}, activityBar(each.activity, `task ${each.task}`)),
          h("td", {class: "wide"}, h("span", {class: "amount", title: whole(each.rowsIn)}, h("i", {style: {width: `${100 * (each.rowsIn || 0) / most}%`}}), h("span", null, brief(each.rowsIn)))),
          h("td", {class: "n"}, rate(each.rowsInPerSec)),
          h("td", {class: "n", title: STEPS.filter((step) => (each.msPerSec || {})[step]).map((step) => `${step} ${millis(each.msPerSec[step])} in each second`).join(", ")}, works(each))))))));
}

const STEPS = ["restore", "open", "execute", "finish"];

const works = (task) => (task.msPerSec ? `${millis(STEPS.reduce((sum, step) => sum + (task.msPerSec[step] || 0), 0))}/s` : "–");

const fact = (name, value) => h("div", null, h("dt", null, name), h("dd", null, value));
