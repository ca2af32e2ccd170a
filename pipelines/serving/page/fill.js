// The view in which an encoder guesses masked words.

import { ask } from "./api.js";
import { bars, described, facts, heading, showIn } from "./detail.js";
import { byId, CLICK, debounced, latestOnly, make, suggest, touch } from "./dom.js";
import { drawLegend, levelsOf } from "./levels.js";
import { textOf } from "./pieces.js";
import { Strip, shown } from "./strip.js";

const EXAMPLE = "The old man sat by the window of the house and looked at the sea.";
const KEYBOARD = touch ? "" : ", or move to it and press Enter,";
const HINT = `${CLICK} a word${KEYBOARD} to mask it. The bars show the model's guesses.`;
const WAIT_MS = 120;

export class FillView {
  constructor(report) {
    this.report = report;
    this.latest = latestOnly();
    this.masked = new Set(); // indices of tokens
    this.tokens = [];
    this.read = {}; // the request whose answer has these tokens
    this.strip = new Strip(
      "Words to mask",
      (index) => this.showToken(index),
      (index) => this.toggle(index),
    );
    byId("filled").append(make("div", { className: "panel" }, this.strip.element));
    byId("fill-note").textContent = `${CLICK} words below to mask them or to show them again.`;
    const typed = debounced(WAIT_MS, () => this.update());
    byId("fill-text").addEventListener("input", () => {
      this.masked.clear();
      typed();
    });
    showIn(byId("fill-detail"), HINT);
  }

  open(model) {
    if (this.model !== model) {
      this.model = model;
      this.masked.clear();
      suggest(byId("fill-text"), model.opening[0] || EXAMPLE);
      this.begin();
    } else this.update();
  }

  // Mask a word in the middle of the text, unless the user has changed the text before the answer came.
  async begin() {
    const text = byId("fill-text").value;
    await this.update();
    if (byId("fill-text").value !== text) return;
    const words = this.tokens.flatMap((token, i) => (/\p{L}{3}/u.test(textOf([token])) ? [i] : []));
    if (words.length === 0 || this.masked.size > 0) return;
    const whole = words.filter((i) => this.wordAt(i).length === 1);
    const index = (whole.length ? whole : words)[(whole.length || words.length) >> 1];
    this.toggle(index);
    if (!touch) this.strip.show(index);
  }

  async update() {
    const body = { model: this.model.name, text: byId("fill-text").value, masked: [...this.masked] };
    try {
      const answer = await this.latest((signal) => (body.text ? ask("/api/fill", body, signal) : { tokens: [] }));
      if (!answer) return;
      this.report();
      this.read = body;
      this.draw(answer.tokens);
    } catch (error) {
      this.draw([]);
      showIn(byId("fill-detail"), HINT);
      this.report(error.message);
    }
  }

  draw(tokens) {
    this.tokens = tokens;
    const levels = levelsOf("surprisal", this.model.levels);
    const name = (token, i) => (this.masked.has(i) ? `masked ${levels.name(token)}` : "plain");
    const label = (i) => (token) => `${described(token)}${this.masked.has(i) ? ", masked" : ""}`;
    this.strip.set(tokens.map((token, i) => shown(token, name(token, i), label(i))));
    drawLegend(byId("fill-legend"), this.masked.size ? `${levels.title} of the masked word` : "", levels.legend);
    if (this.strip.shown >= 0) this.showToken(this.strip.shown);
  }

  // Mask the word that holds this token, or show it again, unless the tokens belong to an older text or another run.
  toggle(index) {
    if (this.read.text !== byId("fill-text").value || this.read.model !== this.model.name) return;
    const masked = this.masked.has(index);
    for (const each of this.wordAt(index)) {
      if (masked) this.masked.delete(each);
      else this.masked.add(each);
    }
    this.update();
  }

  // Return the indices of the tokens of a word: those up to the next that begins with white space.
  wordAt(index) {
    const begins = (i) => i === 0 || /^\s/u.test(textOf([this.tokens[i]])) || /\s$/u.test(textOf([this.tokens[i - 1]]));
    let [from, to] = [index, index + 1];
    while (!begins(from)) from--;
    while (to < this.tokens.length && !begins(to)) to++;
    return Array.from({ length: to - from }, (_, i) => from + i);
  }

  showToken(index) {
    const token = this.tokens[index];
    if (!token) return;
    const hint = make("p", { className: "hint" }, HINT);
    const guesses = token.top ? [facts(token), bars(token.top, { chosen: token.id })] : [hint];
    showIn(byId("fill-detail"), HINT, make("div", { className: "card" }, heading(token), ...guesses));
  }
}
