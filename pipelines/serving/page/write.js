// The view that generates token by token, and continues from any candidate.

import { events } from "./api.js";
import { bars, described, facts, heading, showIn } from "./detail.js";
import { byId, CLICK, make, POINT, sampling, suggest, touch } from "./dom.js";
import { drawLegend, levelsOf } from "./levels.js";
import { Strip, shown } from "./strip.js";

const CONTINUE = `${CLICK} a token, then a candidate, to continue from there.`;
const HINT = touch ? CONTINUE : `${POINT} a token to see its ten likeliest candidates. ${CONTINUE}`;
const EXAMPLE = "It was a dark and";
const TOKENS = 60; // by default, at most half of the context, as on the server
const ENDS = {
  length: "Stopped after the chosen number of tokens.",
  end: "The model ended the text.",
  stop: "Stopped at the stop text.",
};
const CUTS = {
  decoder: " The model no longer sees the beginning.",
  "encoder-decoder": " The source is longer than the model reads: its end was cut off.",
};

export class WriteView {
  constructor(report) {
    this.report = report;
    this.tokens = []; // generated so far
    this.strip = new Strip("Generated tokens", (index) => this.showToken(index));
    this.start = make("span", { className: "start", dir: "auto" });
    byId("written").append(make("div", { className: "panel" }, this.start, this.strip.element));
    byId("prompt").addEventListener("input", () => this.reset());
    byId("go").addEventListener("click", () => (this.running ? this.running.abort() : this.write(sampling("write"))));
    byId("one").addEventListener("click", () => this.write({ ...sampling("write"), max_tokens: 1 }));
    byId("clear").addEventListener("click", () => this.reset());
  }

  open(model) {
    if (this.model !== model) {
      this.model = model;
      byId("max_tokens").placeholder = Math.min(TOKENS, model.context >> 1);
      const [beginning] = /^\s*(\S+\s+){1,7}\S+/.exec(model.opening[0]) ?? [EXAMPLE];
      suggest(byId("prompt"), model.architecture === "decoder" ? beginning : model.opening[0]);
      this.reset();
    }
  }

  reset() {
    this.running?.abort();
    this.tokens = [];
    this.draw();
    this.say("");
    showIn(byId("write-detail"), HINT);
  }

  say(text) {
    byId("write-status").textContent = text;
  }

  // Continue the text with the given options.
  async write(options) {
    this.running?.abort();
    const mine = (this.running = new AbortController());
    this.busy(true);
    this.report();
    this.strip.hold(-1);
    const ids = this.tokens.map(({ id }) => id);
    const body = { model: this.model.name, text: byId("prompt").value, ids, ...options };
    try {
      for await (const event of events("/api/generate", body, mine.signal)) {
        if (mine !== this.running) return;
        if (event.token) this.add(event.token);
        if (event.end) this.say(ENDS[event.end] + (event.cut ? CUTS[this.model.architecture] : ""));
      }
    } catch (error) {
      if (mine !== this.running) return;
      if (error.name === "AbortError") this.say("Stopped.");
      else {
        this.say("");
        this.report(error.message);
      }
    } finally {
      if (mine === this.running) this.busy(false);
    }
  }

  busy(running) {
    if (!running) this.running = undefined;
    byId("go").textContent = running ? "Stop" : "Write";
    byId("one").disabled = running;
    if (running) this.say("Writing …");
  }

  add(token) {
    this.tokens.push(token);
    this.draw();
    if (!touch && this.strip.held < 0) this.showToken(this.tokens.length - 1);
  }

  draw() {
    const levels = levelsOf("surprisal", this.model.levels);
    this.strip.set(this.tokens.map((token) => shown(token, levels.name(token), described)));
    this.start.textContent = this.tokens.length && this.model.architecture === "decoder" ? byId("prompt").value : "";
    byId("clear").disabled = this.tokens.length === 0;
    drawLegend(byId("write-legend"), this.tokens.length ? levels.title : "", levels.legend);
  }

  showToken(index) {
    const token = this.tokens[index];
    if (!token) return;
    const onChoose = (candidate) => this.continueFrom(index, candidate);
    const list = bars(token.top, { chosen: token.id, onChoose });
    const lead = make("p", { className: "of" }, "continue from here with");
    showIn(byId("write-detail"), HINT, make("div", { className: "card" }, heading(token), facts(token), lead, list));
  }

  // Replace the token at `index` with a candidate, drop the tokens after it, and continue.
  continueFrom(index, candidate) {
    const old = this.tokens[index];
    const chosen = { ...old, ...candidate, special: candidate.special };
    chosen.bits = -Math.log2(candidate.p) + 0; // no negative zero
    chosen.rank = 1 + old.top.findIndex(({ id }) => id === candidate.id);
    this.running?.abort();
    this.tokens = [...this.tokens.slice(0, index), chosen];
    this.strip.hold(-1);
    this.draw();
    this.write(sampling("write"));
    byId("go").focus({ preventScroll: true }); // the candidate that had the focus is gone
  }
}
