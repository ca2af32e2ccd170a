// The view of instruments: the pictures and tables of `bytelm inspect`, drawn by the server.

import { ask } from "./api.js";
import { byId, fillSelect, latestOnly, make, suggest } from "./dom.js";

const EXAMPLE = "It was a dark and stormy night";
const LONGEST_LINE = 80; // characters of the text that is suggested

// Return the first line of a text, cut after a word.
function firstLine(text) {
  const line = text.split("\n").find((each) => each.trim()) ?? "";
  return line.length > LONGEST_LINE ? line.slice(0, line.lastIndexOf(" ", LONGEST_LINE)) : line;
}

// Return a region that the keyboard can scroll.
const scrolling = (name, ...content) =>
  make("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": name }, ...content);

function picture({ title, text, svg }) {
  const src = `data:image/svg+xml,${encodeURIComponent(svg)}`;
  const drawn = scrolling(title, make("img", { src, alt: title }));
  return make("figure", { className: "picture" }, make("h3", {}, title), make("figcaption", { className: "note" }, text), drawn);
}

function table({ title, label, heads, rows, text }) {
  const cell = (tag, content, options = {}) => make(tag, options, content);
  const columns = [label, ...heads].map((head) => cell("th", head, { scope: "col" }));
  const lines = rows.map(([name, cells]) =>
    make("tr", {}, cell("th", name, { scope: "row" }), ...cells.map((each) => cell("td", each))),
  );
  const head = make("thead", {}, make("tr", {}, ...columns));
  const whole = make("table", { className: text ? "words" : "" }, head, make("tbody", {}, ...lines));
  return [make("h3", {}, title), scrolling(title, whole)];
}

export class InsideView {
  constructor(report) {
    this.report = report;
    this.latest = latestOnly();
    byId("instrument").addEventListener("change", () => this.arrange());
    byId("look").addEventListener("click", () => this.look());
    byId("inside").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.look();
    });
  }

  open(model) {
    if (this.model === model) return;
    this.model = model;
    suggest(byId("inside-text"), firstLine(model.opening[0]) || EXAMPLE);
    fillSelect(byId("instrument"), model.instruments.map(({ name, heading }) => [name, heading]));
    this.arrange();
  }

  // Show the fields of the chosen instrument, and drop what another one found.
  arrange() {
    this.latest(() => null);
    this.fields = this.model.instruments.find(({ name }) => name === byId("instrument").value).fields;
    for (const element of byId("inside").querySelectorAll("[data-field]")) {
      element.hidden = !this.fields.includes(element.dataset.field);
    }
    byId("found").replaceChildren();
    byId("inside-status").textContent = "";
    this.report();
  }

  // Return the fields of the request; empty ones are left out.
  asked() {
    const inputs = this.fields.map((name) => byId("inside").querySelector(`[data-field=${name}] [name]`));
    const values = inputs.map(({ name, type, value, checked }) => [name, type === "checkbox" ? checked : value]);
    return Object.fromEntries(values.filter(([, value]) => value));
  }

  async look() {
    const body = { model: this.model.name, instrument: byId("instrument").value, ...this.asked() };
    this.report();
    byId("inside-status").textContent = "Looking …";
    try {
      const answer = await this.latest((signal) => ask("/api/inspect", body, signal));
      if (!answer) return;
      const parts = answer.parts.flatMap((part) => (part.heads ? table(part) : [make("p", {}, part)]));
      const note = make("p", { className: "note" }, answer.note);
      byId("found").replaceChildren(note, ...answer.pictures.map(picture), ...parts);
    } catch (error) {
      byId("found").replaceChildren();
      this.report(error.message);
    }
    byId("inside-status").textContent = "";
  }
}
