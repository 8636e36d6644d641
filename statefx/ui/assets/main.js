// The page: what is shown in which order, and what a reader has chosen.

import {h, render} from "./dom.js";
import {delays, freshness, lag, sinks} from "./flow.js";
import {componentTable, details, graph, legend} from "./graph.js";
import {Live} from "./live.js";
import {history, problems, settings, state, support} from "./checkpoint.js";
import {attempts, gantt, median, strip, took} from "./transactions.js";
import {brief, bytes, clock, line, millis, moment, rate, secs, whole} from "./text.js";

const app = document.getElementById("app");

const SECTIONS = [
  ["health", "Overview"], ["graph", "Graph"], ["transactions", "Transactions"], ["gantt", "One transaction"], ["freshness", "Freshness"], ["lag", "Lag"],
  ["sinks", "Sinks"], ["state", "State"], ["problems", "Problems"], ["history", "Savepoints"], ["settings", "Settings"], ["support", "Support"],
];

const TONES = {healthy: "good", idle: "calm", starting: "calm", paused: "calm", stuck: "bad", failing: "bad", failed: "bad", dead: "bad", ended: "calm", unknown: "dim"};

const TASKS_MS = 2000;
const LOOK_MS = 15000;

class Page {
  constructor(name, others) {
    this.name = name;
    this.others = others;
    this.component = null;
    this.focus = null;
    this.transaction = null;    // null: the last one, whichever that is
    this.sort = null;
    this.filter = "";
    this.tasks = null;
    this.worked = null;         // when the tasks of the chosen transaction worked
    this.looks = {};
    this.lookup = {component: null, answer: null, busy: false};
    this.held = {};
    this.maps = {};             // by bolt, once somebody looks up a key: their names are in its files alone
    this.waiting = false;
    this.tableOpen = null;
    this.live = new Live(name, () => this.draw());
    this.look("state");
    this.look("history");
    setInterval(() => this.again(), LOOK_MS);
    setInterval(() => this.askTasks(), TASKS_MS);
  }

  get document() { return this.live.document; }

  now() { return this.live.now(); }

  draw() {
    if (this.waiting) return;
    this.waiting = true;
    const go = () => { this.waiting = false; render(app, view(this)); };
    if (document.hidden) go();
    else requestAnimationFrame(go);
  }

  choose(name) {
    this.component = this.component === name ? null : name;
    if (this.component !== null) this.focus = this.component;
    this.tasks = null;
    this.askTasks();
    this.draw();
  }

  sortBy(name) {
    this.sort = this.sort && this.sort.by === name ? (this.sort.down ? {by: name, down: false} : null) : {by: name, down: name !== "component"};
    this.draw();
  }

  async askTasks() {
    if (this.component === null || document.hidden || (this.tasks && this.live.connection === "lost")) return;
    const found = await this.live.ask("tasks", {component: this.component});
    if (!found.error) this.tasks = found;
    this.draw();
  }

  async chooseTransaction(name) {
    this.transaction = name;
    this.draw();
    if (name === null || (this.worked && this.worked.of === name && !this.worked.error)) return;
    const [txid, attempt] = name.split("/");
    const found = await this.live.ask("worked", {txid, attempt});
    if (this.transaction !== name) return;   // keys may come faster than answers
    this.worked = {...found, of: name};
    this.draw();
  }

  async look(what) {
    this.looks[what] = await this.live.ask(what);
    this.draw();
  }

  again() {
    if (document.hidden || this.live.connection !== "live") return;
    for (const what of Object.keys(this.looks)) this.look(what);
  }

  async lookUp(form) {
    const asked = Object.fromEntries([...form].filter(([name, value]) => value !== "" || name === "key"));
    this.lookup.busy = true;
    this.draw();
    this.lookup.answer = await this.live.ask("state/key", asked);
    this.lookup.busy = false;
    this.draw();
  }

  async askMaps(component) {
    if (this.maps[component]) return;
    this.maps[component] = [];
    const found = await this.live.ask("state/maps", {component});
    if (found.error) delete this.maps[component];
    else this.maps[component] = found.maps;
    this.draw();
  }

  async askHeld(component) {
    this.held[component] = await this.live.ask("deadletters", {component});
    this.draw();
  }
}

// ---- the frame

function view(page) {
  const {document: seen} = page;
  const title = seen.topology || page.name;
  const health = (seen.health || {}).state || "unknown";
  document.title = `${health === "healthy" || health === "idle" ? "" : `${health}: `}${line(title)} · statefx`;
  return h("div", {class: "frame"},
    h("header", {class: "top"},
      h("div", {class: "brand"}, h("span", {class: `dot ${TONES[health] || "dim"}`, "aria-hidden": "true"}),
        page.others.length > 1 ? h("select", {"aria-label": "Topology", onchange: (event) => { location.search = `?topology=${encodeURIComponent(event.target.value)}`; }},
          page.others.map((each) => h("option", {key: each, value: each, selected: each === page.name}, line(each)))) : h("h1", {title: line(title)}, line(title)),
        h("p", {class: "soft"}, [seen.generation ? `generation ${seen.generation}` : null, seen.driver && seen.driver.host ? line(`${seen.driver.host}:${seen.driver.pid}`) : null].filter(Boolean).join(" · "))),
      h("p", {class: `connection ${page.live.connection}`, role: "status"}, said(page))),
    h("nav", {"aria-label": "Sections"}, h("ul", null, SECTIONS.map(([id, name]) => h("li", {key: id}, h("a", {href: `#${id}`}, name, count(page, id)))))),
    h("main", null, lost(page),
      section("health", null, overview(page)),
      section("graph", "Graph", legend(), graph(page), details(page), tabled(page)),
      section("transactions", "Transactions", strip(page), logged(page)),
      section("gantt", "One transaction, by task", gantt(page)),
      section("freshness", "Freshness", freshness(page)),
      section("lag", "Lag", lag(page)),
      section("sinks", "Sinks", sinks(page)),
      section("state", "State", state(page)),
      section("problems", "Problems", problems(page)),
      section("history", "Savepoints, generations, changes", history(page)),
      section("settings", "Settings", settings(page)),
      section("support", "Support", support(page))));
}

function section(id, title, ...content) {
  return h("section", {key: id, id, class: "panel", tabindex: "-1", "aria-labelledby": title ? `${id}-title` : undefined, "aria-label": title ? undefined : "Overview"},
    title && h("h2", {id: `${id}-title`}, title), content);
}

function count(page, id) {
  const number = id === "problems" ? (page.document.exceptions || []).length : id === "sinks" ? Object.values(page.document.sinks || {}).filter((each) => each.stuckSince).length : 0;
  return number ? h("b", {class: "badge"}, number) : null;
}

const isOver = (seen) => ["dead", "ended", "failed"].includes((seen.health || {}).state);

function said(page) {
  const {live} = page;
  if (live.connection === "connecting") return "Connecting…";
  if (live.connection === "lost") return `No answer since ${clock(new Date(live.since).toISOString())}`;
  const written = moment(page.document.writtenAt);
  const age = written === null ? null : (page.now() - written) / 1000;
  return age !== null && (age > 20 || isOver(page.document)) ? `Seen ${secs(age)} ago` : "Live";
}

function lost(page) {
  const {live, document: seen} = page;
  if (live.connection === "lost") {
    const over = seen.endedAt;
    return h("div", {class: "lost", role: "alert", key: "lost"}, h("strong", null, over ? `The topology ended at ${clock(seen.endedAt)}, and its page with it.` : "The connection is lost."),
      h("p", null, over ? "What stands here is the last that it said. " : `Nothing was heard since ${clock(new Date(live.since).toISOString())}, and what stands here is from then. It is tried again every few seconds. `,
        "If the driver is gone, this shows what it left: ", h("code", null, line(`statefx ui ${seen.checkpoint || "CHECKPOINT"}`))));
  }
  if (seen.unread) return h("div", {class: "lost", role: "alert", key: "lost"}, h("strong", null, "It can't be observed just now."), h("p", null, line(seen.unread)));
  return null;
}

// ---- the first look

function overview(page) {
  const {document: seen} = page;
  const health = seen.health || {state: "unknown", sentence: "Nothing is known yet."};
  const tone = TONES[health.state] || "dim";
  const since = moment(health.since);
  const bounds = (seen.why || []).filter((each) => !["unwell", "slots"].includes(each.name)); // the sentence above says it
  return [
    h("div", {class: `verdict ${tone}`, role: "status", id: "verdict"},
      h("p", {class: "state"}, h("span", {class: `dot ${tone}`, "aria-hidden": "true"}), health.state, since !== null && h("span", {class: "soft"}, ` for ${secs(Math.max(0, (page.now() - since) / 1000))}`)),
      h("p", {class: "sentence"}, health.sentence),
      health.remedy && h("p", {class: "remedy"}, health.remedy),
      seen.error && health.state !== "failed" && h("p", {class: "reason"}, seen.error),
      isOver(seen) && seen.writtenAt && h("p", {class: "soft asof"}, `Rates, lag and tasks are those of ${clock(seen.writtenAt)}, when the driver wrote them last; the rest is what the checkpoint says now.`)),
    bounds.length > 0 && h("div", {class: "why", id: "why"}, h("h3", null, "What bounds it"), h("ol", null, bounds.map((each) => h("li", {key: each.sentence},
      h("p", null, each.sentence), each.remedy && h("p", {class: "soft"}, each.remedy))))),
    h("dl", {class: "figures"}, figures(page).map(([name, value, hint]) => h("div", {key: name, title: hint}, h("dt", null, name), h("dd", null, value)))),
  ];
}

function figures(page) {
  const {document: seen} = page;
  const transactions = seen.transactions || [];
  const committed = transactions.filter((each) => each.outcome === "committed");
  const last = committed.length ? moment(committed[committed.length - 1].ended) : null;
  const inputs = ((seen.graph || {}).components || []).filter((each) => each.kind === "stream" || each.kind === "spout").map((each) => (seen.components || {})[each.name] || {});
  const sum = (list, key) => { const found = list.map((each) => each[key]).filter((each) => typeof each === "number"); return found.length ? found.reduce((a, b) => a + b, 0) : null; };
  const late = delays(seen);
  const worst = late.reduce((a, b) => (a === null || b.late > a.late ? b : a), null);
  const components = Object.values(seen.components || {});
  return [
    ["Rows in", rate(sum(inputs, "rowsOutPerSec")), "rows a second that all sources bring"],
    ["Transaction", millis(median(committed.map(took))), "the median of those of the strip that were committed"],
    ["Last commit", last === null ? "–" : secs(Math.max(0, (page.now() - last) / 1000)) + " ago", "when COMMITTED was durable"],
    ["Rolled back", committed.length ? `${transactions.filter((each) => each.outcome === "rolled back").length} of ${transactions.length}` : "–", "attempts of the strip"],
    ["Behind", worst ? secs(worst.late) : "–", worst ? `event time of ${line(worst.name)}, the latest component` : "no event time"],
    ["Lag", brief(sum(Object.values(seen.sources || {}), "lagRecords")), "records that all sources have still to read"],
    ["State", bytes(sum(components, "stateBytes")), "bytes of all bolts"],
  ];
}

// ---- what is opened when asked

function tabled(page) {
  return h("details", {class: "more", open: page.document.graph && page.document.graph.components.length <= 40 ? true : undefined}, h("summary", null, "Components as a table"), componentTable(page));
}

function logged(page) {
  return h("details", {class: "more", ontoggle: (event) => { if (event.target.open && !page.looks.transactions) page.look("transactions"); }}, h("summary", null, "All attempts that the log remembers"), attempts(page));
}

// ---- begin

async function begin() {
  const asked = new URLSearchParams(location.search).get("topology");
  try {
    const answer = await fetch("/v1/topologies");
    const {topologies, error} = await answer.json();
    if (error) throw new Error(error);
    const names = topologies.map((each) => each.name);
    if (names.length) {
      new Page(names.includes(asked) ? asked : names[0], names).draw();
      return;
    }
    throw new Error("nothing is shown here yet");
  } catch (error) {
    render(app, h("main", {class: "asking"}, h("h1", null, "statefx"), h("p", {role: "alert"}, `${error.message}. It is tried again.`)));
    setTimeout(begin, 3000);
  }
}

begin();
