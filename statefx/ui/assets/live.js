// What is known of the topology, as it changes, and whether the server still answers.

const SILENT_MS = 20000;    // without a word for so long, the connection is lost
const AGAIN_MS = 4000;
const HIDDEN_MS = 60000;    // a page that nobody sees for so long asks for nothing

export class Live {
  constructor(name, changed) {
    this.base = `/v1/topologies/${encodeURIComponent(name)}`;
    this.document = {};
    this.connection = "connecting";   // "live", "lost"
    this.heard = null;                // when the last word came, by this machine's clock
    this.since = null;                // since when it is lost
    this.offset = 0;                  // the server's clock minus this machine's
    this.changed = changed;
    this.timer = null;
    document.addEventListener("visibilitychange", () => this.seen());
    setInterval(() => this.watch(), 1000);
    this.open();
  }

  now() {
    return Date.now() + this.offset;
  }

  open() {
    this.close();
    const source = this.source = new EventSource(`${this.base}/events`);
    const heard = () => {
      this.heard = Date.now();
      this.since = null;
      this.connection = "live";
    };
    source.addEventListener("change", (event) => {
      heard();
      Object.assign(this.document, JSON.parse(event.data));
      const at = Date.parse(this.document.servedAt);
      if (!Number.isNaN(at)) this.offset = at - Date.now();
      this.changed();
    });
    source.addEventListener("beat", () => { heard(); this.changed(); });
    source.onerror = () => {
      this.lose();
      if (source.readyState === EventSource.CLOSED) this.again();   // refused: a browser tries no more by itself
    };
  }

  close() {
    clearTimeout(this.timer);
    if (this.source) this.source.close();
    this.source = null;
  }

  again() {
    this.close();
    this.timer = setTimeout(() => this.open(), AGAIN_MS);
  }

  lose() {
    if (this.connection === "lost") return;
    this.connection = "lost";
    this.since = this.heard || Date.now();
    this.changed();
  }

  watch() {
    if (this.source && this.connection === "live" && Date.now() - this.heard > SILENT_MS) {
      this.lose();
      this.again();
    }
    this.changed();   // times go on
  }

  seen() {
    clearTimeout(this.hiding);
    if (document.hidden) this.hiding = setTimeout(() => this.close(), HIDDEN_MS);
    else if (!this.source) this.open();
  }

  // The server's answer as data; an error is {error: its text}.
  async ask(path, given) {
    const query = given ? `?${new URLSearchParams(given)}` : "";
    try {
      const answer = await fetch(`${this.base}/${path}${query}`, {headers: {accept: "application/json"}});
      return await answer.json();
    } catch (error) {
      return {error: `no answer: ${error.message}`};
    }
  }
}
