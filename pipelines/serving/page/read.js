// The view that colours a text as it is typed, for one or two runs.

import { ask } from "./api.js";
import { aligned, offsetOf, sum, tokenAt } from "./compare.js";
import { bars, bits, described, facts, heading, showIn, totals } from "./detail.js";
import { byId, debounced, fillSelect, latestOnly, make, POINT, suggest, touch } from "./dom.js";
import { drawLegend, differenceLegend, differenceLevel, levelsOf } from "./levels.js";
import { spoken } from "./pieces.js";
import { Strip, shown } from "./strip.js";

const EXAMPLE = "It was a dark and stormy night; the rain fell in torrents, except at occasional intervals.";
const KEYBOARD = touch ? "" : " With the keyboard: Tab to the tokens, then arrow keys.";
const HINT = `${POINT} a token to see what the model expected there.${KEYBOARD}`;
const KINDS = { own: "tokens", encoder: "tokens of the source", cross: "target and source" };
const CUT = "The source is longer than the model reads: its end was cut off.";
const UNLIKE = "Only one of the runs reads a special token here, so there is no difference: choose “side by side”.";
const WAIT_MS = 120; // after the last key

export class ReadView {
  constructor(models, report) {
    this.models = models;
    this.report = report;
    this.key = Math.random().toString(36).slice(2); // names this page's text on the server
    this.latest = latestOnly();
    this.held = new Map(); // the tokens of the last answer, by run
    byId("text").value = sessionStorage.getItem("bytelm-text") ?? "";
    const typed = debounced(WAIT_MS, () => this.update());
    for (const id of ["text", "target"]) byId(id).addEventListener("input", typed);
    byId("text").addEventListener("input", () => sessionStorage.setItem("bytelm-text", byId("text").value));
    for (const id of ["show", "kind", "layer", "head", "other", "as"]) {
      byId(id).addEventListener("change", () => this.arrange());
    }
  }

  open(model) {
    this.model = model;
    suggest(byId("target"), model.opening[1]);
    suggest(byId("text"), model.opening[0] || EXAMPLE);
    const others = this.models.filter((each) => each !== model && each.architecture === model.architecture);
    // Tokens of different tokenizers are matched by their bytes, which are unknown if a tokenizer loses text.
    const comparable = others.filter(
      (each) => each.tokenizer === model.tokenizer || (each.lossless && model.lossless),
    );
    fillSelect(byId("other"), [["", "no other run"], ...comparable.map(({ name }) => [name, name])]);
    fillSelect(byId("kind"), Object.keys(model.layers).map((kind) => [kind, KINDS[kind]]));
    this.comparable = comparable.length > 0;
    const attention = byId("show").querySelector("[value=attention]");
    attention.hidden = attention.disabled = Object.keys(model.layers).length === 0; // a model with other mixers
    if (attention.disabled && attention.selected) byId("show").value = "surprisal";
    this.arrange();
  }

  // Show the options that apply to the other choices.
  arrange() {
    const attention = byId("show").value === "attention";
    const surprisal = byId("show").value === "surprisal";
    for (const field of document.querySelectorAll(".of-attention")) field.hidden = !attention;
    byId("kind-field").hidden = !attention || Object.keys(this.model.layers).length < 2;
    const numbers = (count) => Array.from({ length: count }, (_, i) => [i, i]);
    fillSelect(byId("layer"), numbers(this.model.layers[byId("kind").value]));
    fillSelect(byId("head"), numbers(this.model.heads));
    byId("other-field").hidden = attention || !this.comparable;
    this.other = attention ? undefined : this.models.find((each) => each.name === byId("other").value);
    byId("as-field").hidden = !this.other || !surprisal;
    this.difference = !byId("as-field").hidden && byId("as").value === "difference";
    this.update();
  }

  // Fetch the scores for the current fields, and draw them unless the fields have changed in the meantime.
  async update() {
    const text = byId("text").value;
    const target = this.model.architecture === "encoder-decoder" ? byId("target").value : undefined;
    if (!text || target === "") {
      await this.latest(() => null);
      this.clear();
      this.report();
      return;
    }
    try {
      const answer = await this.latest((signal) => this.fetch({ text, target }, signal));
      if (!answer) return;
      this.report();
      if (byId("show").value === "attention") this.drawAttention(answer[0]);
      else this.draw(answer);
    } catch (error) {
      this.clear();
      this.report(error.message);
    }
  }

  fetch(fields, signal) {
    if (byId("show").value === "attention") {
      const head = { kind: byId("kind").value, layer: Number(byId("layer").value), head: Number(byId("head").value) };
      return Promise.all([ask("/api/attention", { model: this.model.name, ...fields, ...head }, signal)]);
    }
    const runs = [this.model, ...(this.other ? [this.other] : [])];
    return Promise.all(runs.map(({ name }) => this.score(name, fields, signal)));
  }

  // Return the scores of a text. The server leaves out the leading tokens that the last answer already has.
  async score(name, fields, signal) {
    const held = this.held.get(name) ?? [];
    const have = fields.target === undefined ? held.map(({ id }) => id) : [];
    const answer = await ask("/api/score", { model: name, ...fields, key: this.key, have }, signal);
    const tokens = [...held.slice(0, answer.same), ...answer.tokens];
    this.held.set(name, tokens);
    return { ...answer, tokens };
  }

  clear() {
    this.layout = undefined;
    byId("strips").replaceChildren();
    drawLegend(byId("legend"), "", []);
    showIn(byId("read-detail"), HINT);
  }

  // Return a strip for each label, in a panel with an optional title above and notes below. As long as the layout stays
  // the same, the strips keep their focus and held token.
  stripsFor(layout, labels, titles, onShow) {
    this.onShow = onShow;
    if (this.layout !== layout) {
      this.clear();
      this.layout = layout;
      this.active = undefined; // the strip of the token that is shown
      this.strips = labels.map((label, which) => {
        const strip = new Strip(label, (index) => {
          this.active = strip;
          this.onShow(index, which);
        });
        return strip;
      });
      this.notes = labels.map(() => make("div"));
      const panels = this.strips.map((strip, i) => {
        const title = titles ? [make("h3", {}, titles[i])] : [];
        return make("div", { className: "panel" }, ...title, strip.element, this.notes[i]);
      });
      byId("strips").replaceChildren(...panels);
      byId("strips").classList.toggle("two", panels.length > 1);
    }
    return this.strips;
  }

  draw(answers) {
    const runs = [this.model, this.other].slice(0, answers.length);
    if (this.difference) {
      this.drawDifference(runs, answers);
      return;
    }
    const levels = levelsOf(byId("show").value, this.model.levels);
    const all = answers.map((answer) => answer.tokens);
    const names = runs.map(({ name }) => name);
    const labels = names.map((name) => `Tokens as ${name} reads them`);
    const show = (index, which) => this.showToken(all, names, index, which);
    const strips = this.stripsFor(`text ${names}`, labels, names.length > 1 && names, show);
    for (const [i, strip] of strips.entries()) {
      strip.set(all[i].map((token, at) => shown(token, levels.name(token, at), described)));
      this.notes[i].replaceChildren(...summed(answers[i]));
    }
    this.active?.refresh();
    const unscored = all.flat().some((token) => token.bits === undefined);
    drawLegend(byId("legend"), levels.title, levels.legend, unscored && levels.title);
  }

  // Show a token and the token of the other run at the same place.
  showToken(all, names, index, which) {
    const token = all[which][index];
    if (!token) return;
    const offset = offsetOf(all[which], index);
    const content = all.flatMap((tokens, i) => {
      const place = i === which ? index : tokenAt(tokens, offset);
      this.strips[i].mark(i === which ? [] : [place]);
      const own = tokens[place];
      if (!own) return [];
      const two = all.length > 1;
      const name = two ? [make("p", { className: "of" }, names[i])] : [];
      const candidates = (own.top ?? []).slice(0, two ? 5 : 10);
      const list = bars(candidates, { chosen: own.id });
      return [make("div", { className: "card" }, ...name, heading(own), facts(own, two), list)];
    });
    showIn(byId("read-detail"), HINT, ...content);
  }

  drawDifference(runs, answers) {
    const names = runs.map(({ name }) => name);
    const stretches = aligned(answers[0].tokens, answers[1].tokens);
    if (!stretches) {
      this.clear();
      this.report(UNLIKE);
      return;
    }
    const labels = [`Difference between ${names[0]} and ${names[1]}`];
    const show = (index) => this.showStretch(names, stretches[index]);
    const [strip] = this.stripsFor(`difference ${names}`, labels, null, show);
    strip.set(stretches.map((each) => shown(each, differenceLevel(each.bits), () => differed(each, names))));
    this.active?.refresh();
    const cut = "The tokenizers differ, so the text is cut wherever both runs end a token.";
    const note = runs[0].tokenizer === runs[1].tokenizer ? [] : [make("p", { className: "note" }, cut)];
    this.notes[0].replaceChildren(...answers.flatMap((answer, i) => summed(answer, names[i])), ...note);
    drawLegend(byId("legend"), "bits", differenceLegend(...names));
  }

  showStretch(names, stretch) {
    if (!stretch) return;
    const content = [stretch.first, stretch.second].map((tokens, i) =>
      make(
        "div",
        { className: "card" },
        make("p", { className: "of" }, names[i], ": ", make("strong", {}, bits(finite(sum(tokens))))),
        ...tokens.flatMap((token) => [heading(token), bars((token.top ?? []).slice(0, 5), { chosen: token.id })]),
      ),
    );
    showIn(byId("read-detail"), HINT, make("p", { className: "lead" }, differed(stretch, names)), ...content);
  }

  drawAttention({ queries, keys, weights }) {
    const cross = byId("kind").value === "cross";
    const labels = cross ? ["Target", "Source"] : ["Tokens as the model reads them"];
    const strips = this.stripsFor(`attention ${cross}`, labels, cross && labels, (index, which) => {
      if (which === 0) this.showAttention(queries[index], keys, weights[index], cross);
    });
    const plain = (token) => shown(token, "weight", spoken);
    strips[0].set(queries.map(plain));
    if (cross) strips[1].set(keys.map(plain));
    const note = cross
      ? `${POINT} a token of the target to see which tokens of the source it attends to.`
      : `${POINT} a token to see which tokens it attends to.`;
    drawLegend(byId("legend"), note, []);
    if (touch && strips[0].shown < 0) return;
    const { held, current } = strips[0];
    const last = queries.length - 1;
    strips[0].show(held >= 0 ? held : Math.min(current || last, last));
  }

  // Tint the keys by their weights for one query, and list the largest.
  showAttention(query, keys, weights, cross) {
    const strip = this.strips[cross ? 1 : 0];
    const largest = Math.max(...weights, 1e-6);
    for (const [i, span] of strip.spans.entries()) span.style.setProperty("--weight", (weights[i] ?? 0) / largest);
    this.strips[0].mark([this.strips[0].shown]);
    const best = keys
      .map((key, i) => ({ ...key, p: weights[i] ?? 0 }))
      .filter(({ p }) => p > 0)
      .sort((a, b) => b.p - a.p)
      .slice(0, 10);
    const lead = make("p", { className: "of" }, "attends to");
    showIn(byId("read-detail"), HINT, make("div", { className: "card" }, heading(query), lead, bars(best)));
  }
}

// Return the totals of an answer, after an optional name, and a note if the model did not read the whole source.
function summed({ totals: all, cut }, name) {
  return [totals(all, name), ...(cut ? [make("p", { className: "note" }, CUT)] : [])];
}

const finite = (value) => (Number.isNaN(value) ? undefined : value);

// Return a sentence about a stretch of text that two runs predict.
function differed(stretch, [first, second]) {
  const text = spoken({ hex: stretch.hex });
  if (stretch.bits === undefined) return `${text}: not scored by both`;
  const [better, worse] = stretch.bits > 0 ? [first, second] : [second, first];
  return `${text}: ${better} needs ${bits(Math.abs(stretch.bits))} less than ${worse}`;
}
