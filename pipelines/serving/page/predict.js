// The view of a fine-tuned run: what it predicts for texts, shown in the way of its task.

import { ask } from "./api.js";
import { percent } from "./detail.js";
import { byId, latestOnly, make } from "./dom.js";

const NAMES = { tokens: "Text", words: "Text" }; // of columns that hold lists of words
const LINES = "one a line"; // of the choices
const CUT = "The input is longer than the model reads: it was cut.";

const said = (text, className = "said") => make("p", { className, dir: "auto" }, text);

// Return bars for [name, probability] pairs; those that `isChosen` are marked.
function chances(pairs, isChosen) {
  const rows = pairs.map(([name, p], place) => {
    const fill = make("span", { className: "fill" });
    fill.style.setProperty("--share", p);
    const track = make("span", { className: "track", "aria-hidden": "true" }, fill);
    const label = make("span", { className: "piece", dir: "auto" }, name);
    const share = make("span", { className: "share" }, percent(p));
    return make("li", { className: isChosen(name, place) ? "own" : "" }, label, track, share);
  });
  return make("ol", { className: "bars wide" }, ...rows);
}

// Return a text with its spans [start, end, label] marked. Places count characters, not UTF-16 units.
function marked(text, spans) {
  const characters = [...text];
  const part = (from, to) => characters.slice(from, to).join("");
  const nodes = [];
  let at = 0;
  for (const [start, end, label] of spans) {
    nodes.push(part(at, start), make("mark", {}, part(start, end), ...(label ? [make("small", {}, label)] : [])));
    at = end;
  }
  return make("p", { className: "said marks", dir: "auto" }, ...nodes, part(at));
}

// Return the words of a text, each with its tag.
function tagged(words, tags) {
  const nodes = words.flatMap((word, i) => [make("mark", {}, word, make("small", {}, tags[i])), " "]);
  return make("p", { className: "said marks", dir: "auto" }, ...nodes);
}

// How the prediction of each task is shown, given its fields and the texts that it was made for.
const SHOWN = {
  classes({ prediction, probabilities }) {
    const chosen = new Set([prediction].flat().map(String));
    return [said([...chosen].join(", ") || "no label", "result"), chances(Object.entries(probabilities), (name) => chosen.has(name))];
  },
  choices({ prediction, predicted_choice: choice, probabilities }, [, ...choices]) {
    const pairs = probabilities.map((p, i) => [choices.at(i - probabilities.length), p]);
    return [said(choice, "result"), chances(pairs, (_, place) => place === prediction)];
  },
  regression: ({ prediction }) => [said(String(Number(prediction.toPrecision(4))), "result")],
  tokens({ prediction, words, probability = [] }, [text]) {
    const likely = (label, i) => [label, ...(probability[i] ? [percent(probability[i])] : [])].join(" ");
    if (words) return [tagged(words, prediction.map(likely))];
    const spans = prediction
      .map((span) => (Array.isArray(span) ? span : [span.start, span.end, span.label]))
      .map(([start, end, label], i) => [start, end, likely(label, i)]);
    return [marked(text, spans), ...(spans.length ? [] : [said("no entity", "status")])];
  },
  spans({ prediction, start, end, margin }, [, context]) {
    const score = margin === null ? "" : `score ${margin.toFixed(2)} above that of no answer`;
    const place = start === null ? [] : [[start, end]];
    return [said(prediction || "no answer", "result"), marked(context, place), said(score, "status")];
  },
  "text-to-text": ({ prediction }) => [prediction ? said(prediction) : said("an empty text", "status")],
};

// Show all fields of the prediction of any other task.
function fields(prediction) {
  const rows = Object.entries(prediction).flatMap(([name, value]) => [
    make("dt", {}, name),
    make("dd", {}, typeof value === "string" ? value : JSON.stringify(value)),
  ]);
  return [make("dl", { className: "facts" }, ...rows)];
}

export class PredictView {
  constructor(report) {
    this.report = report;
    this.latest = latestOnly();
    byId("predict-go").addEventListener("click", () => this.predict());
  }

  open(model) {
    if (this.model === model) return;
    this.model = model;
    this.latest(() => null);
    byId("predicted").replaceChildren();
    byId("predict-status").textContent = "";
    byId("inputs").replaceChildren(...model.inputs.flatMap((name, place) => this.field(name, place)));
  }

  // Return the label and the field of an input.
  field(name, place) {
    const last = place === this.model.inputs.length - 1;
    const lines = this.model.task === "choices" && last;
    const id = `input-${place}`;
    const text = NAMES[name] ?? name.charAt(0).toUpperCase() + name.slice(1);
    const rows = lines || last ? 3 : 2;
    const area = make("textarea", { id, rows, dir: "auto", spellcheck: false, autocomplete: "off" });
    area.placeholder = lines ? "Two choices or more, each on a line" : "Type or paste a text";
    area.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.predict();
    });
    return [make("label", { className: "above", htmlFor: id }, lines ? `${text}, ${LINES}` : text), area];
  }

  // Return the texts of the fields; each line of a field with choices is a text.
  texts() {
    const texts = [...byId("inputs").querySelectorAll("textarea")].map(({ value }) => value);
    if (this.model.task !== "choices") return texts;
    return [...texts.slice(0, -1), ...texts.at(-1).split("\n").filter((line) => line.trim())];
  }

  async predict() {
    const texts = this.texts();
    const status = byId("predict-status");
    if (!texts[0]) {
      this.report(`“${byId("inputs").firstChild.textContent}” is empty: give a text.`);
      return;
    }
    this.report();
    status.textContent = "Predicting …";
    try {
      const answer = await this.latest((signal) => ask("/api/predict", { model: this.model.name, texts }, signal));
      if (!answer) return;
      const [prediction] = answer.predictions;
      const note = answer.cut ? [make("p", { className: "note" }, CUT)] : [];
      byId("predicted").replaceChildren(...(SHOWN[answer.task] ?? fields)(prediction, texts), ...note);
    } catch (error) {
      byId("predicted").replaceChildren();
      this.report(error.message);
    }
    status.textContent = "";
  }
}
