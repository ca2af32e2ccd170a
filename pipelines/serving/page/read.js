// The view that colours a text while it is typed, with one run or two.

import { ask } from "./api.js";
import { aligned, offsetOf, sum, tokenAt } from "./compare.js";
import { bars, bits, described, facts, heading, showIn, totals } from "./detail.js";
import { byId, debounced, fillSelect, latestOnly, make } from "./dom.js";
import { drawLegend, differenceLegend, differenceLevel, levelsOf } from "./levels.js";
import { alone, spoken } from "./pieces.js";
import { Strip } from "./strip.js";

const EXAMPLE = "It was a dark and stormy night; the rain fell in torrents, except at occasional intervals.";
const HINT = "Point at a token to see what the model expected there. With the keyboard: Tab to the text, then arrow keys.";
const KINDS = { own: "tokens", encoder: "tokens of the source", cross: "target and source" };
const WAIT_MS = 120; // after the last key

export class ReadView {
  constructor(models, report) {
    this.models = models;
    this.report = report;
    this.key = Math.random().toString(36).slice(2); // names this page's text on the server
    this.latest = latestOnly();
    byId("text").value = sessionStorage.getItem("bytelm-text") ?? EXAMPLE;
    const typed = debounced(WAIT_MS, () => this.update());
    for (const id of ["text", "target"]) byId(id).addEventListener("input", typed);
    for (const id of ["show", "kind", "layer", "head", "other", "as"]) {
      byId(id).addEventListener("change", () => this.arrange());
    }
  }

  open(model) {
    this.model = model;
    const comparable = this.models.filter((each) => each !== model && each.architecture === model.architecture);
    fillSelect(byId("other"), [["", "no other run"], ...comparable.map(({ name }) => [name, name])]);
    fillSelect(byId("kind"), Object.keys(model.layers).map((kind) => [kind, KINDS[kind]]));
    this.comparable = comparable.length > 0;
    this.arrange();
  }

  // Show the options that apply to each other.
  arrange() {
    const attention = byId("show").value === "attention";
    const surprisal = byId("show").value === "surprisal";
    for (const field of document.querySelectorAll(".of-attention")) field.hidden = !attention;
    byId("kind-field").hidden = !attention || Object.keys(this.model.layers).length < 2;
    const numbers = (count) => Array.from({ length: count }, (_, i) => [i, i + 1]);
    fillSelect(byId("layer"), numbers(this.model.layers[byId("kind").value]));
    fillSelect(byId("head"), numbers(this.model.heads));
    byId("other-field").hidden = attention || !this.comparable;
    this.other = attention ? undefined : this.models.find((each) => each.name === byId("other").value);
    byId("as-field").hidden = !this.other || !surprisal;
    this.difference = !byId("as-field").hidden && byId("as").value === "difference";
    this.update();
  }

  // Ask for what the fields say, and draw it unless they have changed in the meantime.
  async update() {
    const text = byId("text").value;
    sessionStorage.setItem("bytelm-text", text);
    const target = this.model.architecture === "encoder-decoder" ? byId("target").value : undefined;
    if (!text || target === "") {
      await this.latest(() => null);
      this.clear();
      return;
    }
    try {
      const answer = await this.latest((signal) => this.fetch({ text, target }, signal));
      if (!answer) return;
      this.report();
      if (byId("show").value === "attention") this.drawAttention(answer[0]);
      else this.draw(answer);
    } catch (error) {
      this.report(error.message);
    }
  }

  fetch(fields, signal) {
    if (byId("show").value === "attention") {
      const head = { kind: byId("kind").value, layer: Number(byId("layer").value), head: Number(byId("head").value) };
      return Promise.all([ask("/api/attention", { model: this.model.name, ...fields, ...head }, signal)]);
    }
    const runs = [this.model, ...(this.other ? [this.other] : [])];
    return Promise.all(runs.map(({ name }) => ask("/api/score", { model: name, ...fields, key: this.key }, signal)));
  }

  clear() {
    this.layout = undefined;
    byId("strips").replaceChildren();
    drawLegend(byId("legend"), "", []);
    showIn(byId("read-detail"), HINT);
  }

  // Return this many strips with these labels. They are kept while the layout stays, with focus and held token.
  stripsFor(layout, labels, onShow) {
    this.onShow = onShow;
    if (this.layout !== layout) {
      this.clear();
      this.layout = layout;
      this.strips = labels.map((label, which) => new Strip(label, (index) => this.onShow(index, which)));
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
    const strips = this.stripsFor(`text ${names}`, names.map((name) => `Tokens as ${name} reads them`), (index, which) =>
      this.showToken(all, names, index, which),
    );
    for (const [i, strip] of strips.entries()) {
      strip.set(all[i].map((token, at) => ({ ...token, level: levels.name(token, at), label: described(token) })));
    }
    byId("strips").replaceChildren(
      ...strips.map((strip, i) => {
        const title = strips.length > 1 ? [make("h3", {}, names[i])] : [];
        return make("div", { className: "panel" }, ...title, strip.element, totals(answers[i].totals));
      }),
    );
    byId("strips").classList.toggle("two", strips.length > 1);
    for (const strip of strips) strip.refresh();
    const unscored = all.flat().some((token) => token.bits === undefined);
    drawLegend(byId("legend"), levels.title, levels.legend, unscored && levels.title);
  }

  // Show a token, and the token of the other run at the same place.
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
      return [make("div", { className: "card" }, ...name, heading(own), facts(own, two), bars(candidates, { chosen: own.id }))];
    });
    showIn(byId("read-detail"), HINT, ...content);
  }

  drawDifference(runs, answers) {
    const names = runs.map(({ name }) => name);
    const stretches = aligned(answers[0].tokens, answers[1].tokens);
    const labels = [`Difference between ${names[0]} and ${names[1]}`];
    const [strip] = this.stripsFor(`difference ${names}`, labels, (index) => this.showStretch(names, stretches[index]));
    strip.set(stretches.map((each) => ({ ...each, level: differenceLevel(each.bits), label: differed(each, names) })));
    strip.refresh();
    const same = runs[0].tokenizer === runs[1].tokenizer;
    byId("strips").replaceChildren(
      make(
        "div",
        { className: "panel" },
        strip.element,
        ...answers.map((answer, i) => totals(answer.totals, names[i])),
        ...(same ? [] : [make("p", { className: "note" }, "The tokenizers differ: the text is cut where both end a token.")]),
      ),
    );
    byId("strips").classList.remove("two");
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
    const label = cross ? ["Target", "Source"] : ["Tokens as the model reads them"];
    const strips = this.stripsFor(`attention ${cross}`, label, (index, which) => {
      if (which === 0) this.showAttention(queries[index], keys, weights[index], cross);
    });
    const plain = (token) => ({ ...token, level: "weight", label: spoken(token) });
    strips[0].set(queries.map(plain));
    if (cross) strips[1].set(keys.map(plain));
    byId("strips").replaceChildren(
      ...strips.map((strip, i) => make("div", { className: "panel" }, ...(cross ? [make("h3", {}, label[i])] : []), strip.element)),
    );
    byId("strips").classList.toggle("two", cross);
    const note = cross ? "Point at a token of the target: the source shows where it looks." : "Point at a token: the others show how much it attends to them.";
    drawLegend(byId("legend"), note, []);
    strips[0].show(Math.max(strips[0].held, Math.min(strips[0].current || queries.length - 1, queries.length - 1)));
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

const finite = (value) => (Number.isNaN(value) ? undefined : value);

// Return a sentence about a stretch of text that two runs predict.
function differed(stretch, [first, second]) {
  const text = spoken({ hex: stretch.hex });
  if (stretch.bits === undefined) return `${text}: not scored by both`;
  const [better, worse] = stretch.bits > 0 ? [first, second] : [second, first];
  return `${text}: ${better} needs ${bits(Math.abs(stretch.bits))} less than ${worse}`;
}
