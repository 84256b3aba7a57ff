// Small charts as inline SVG: stacked bars or lines over time, read with the pointer or the arrow keys.

import { element } from "./dom.js";
import { clockTime, tick } from "./format.js";
import { roundMoments } from "./ticks.js";

const HEIGHT = 150;
const EDGE = { top: 8, right: 8, bottom: 20, left: 52 };
const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, attributes, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** The smallest of 1, 2, 5, 10, 20, … that is not below a value. */
export function niceCeiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * (1 - 1e-9));
}

export class Chart {
  /**
   * `kind` is "bars" (stacked) or "lines"; `series` are `{ label, className }` in the order of the values that `show`
   * gets; `format` makes a value readable.
   */
  constructor(host, { title, kind, series, format }) {
    Object.assign(this, { kind, series, format, title, data: null, index: null });
    const legend = series.map(({ label, className }) =>
      element("span", { className: "key" }, element("i", { className }), label),
    );
    this.readout = element("output", { className: "readout" });
    this.canvas = svg("svg", { class: `chart ${kind}`, height: HEIGHT, role: "img", tabindex: 0 });
    const head = element("figcaption", {}, element("strong", { textContent: title }), ...legend, this.readout);
    host.append(element("figure", {}, head, this.canvas));
    this.canvas.addEventListener("pointermove", (event) => this.read(this.indexAt(event)));
    this.canvas.addEventListener("pointerleave", () => this.read(null));
    this.canvas.addEventListener("blur", () => this.read(null));
    this.canvas.addEventListener("keydown", (event) => this.onKey(event));
    this.resized = new ResizeObserver(() => this.draw());
    this.resized.observe(this.canvas);
  }

  /** Draw `values` (one list for each series, null where there is no value) from `startS`, `bucketS` apart. */
  show({ startS, bucketS, values }) {
    this.data = { startS, bucketS, values, num: values[0].length };
    if (this.index !== null) this.index = Math.min(this.index, this.data.num - 1);
    this.draw();
  }

  draw() {
    this.width = this.canvas.clientWidth;
    if (!this.data || this.width === 0) return;
    this.top = niceCeiling(this.highest());
    this.canvas.setAttribute("viewBox", `0 0 ${this.width} ${HEIGHT}`);
    const drawn = this.kind === "bars" ? this.bars() : this.lines();
    this.cursor = svg("line", { class: "cursor", y1: EDGE.top, y2: HEIGHT - EDGE.bottom, visibility: "hidden" });
    this.canvas.replaceChildren(...this.grid(), ...drawn, this.cursor);
    this.canvas.setAttribute("aria-label", this.summary());
    this.read(this.index);
  }

  highest() {
    const { values, num } = this.data;
    if (this.kind === "lines") return Math.max(0, ...values.flat().filter((value) => value !== null));
    return Math.max(0, ...Array.from({ length: num }, (_, i) => values.reduce((sum, list) => sum + list[i], 0)));
  }

  x(index) {
    return EDGE.left + ((this.width - EDGE.left - EDGE.right) * index) / this.data.num;
  }

  y(value) {
    return EDGE.top + (HEIGHT - EDGE.top - EDGE.bottom) * (1 - value / this.top);
  }

  grid() {
    const nodes = [];
    for (const value of [0, this.top / 2, this.top]) {
      const y = this.y(value);
      nodes.push(svg("line", { class: "grid", x1: EDGE.left, x2: this.width - EDGE.right, y1: y, y2: y }));
      nodes.push(svg("text", { x: EDGE.left - 6, y: y + 4, "text-anchor": "end" }, tick(value, this.format)));
    }
    const { num, startS, bucketS } = this.data;
    for (const at of roundMoments(startS, startS + num * bucketS, Math.max(2, Math.floor(this.width / 90)))) {
      const x = this.x((at - startS) / bucketS);
      nodes.push(svg("line", { class: "tick", x1: x, x2: x, y1: EDGE.top, y2: HEIGHT - EDGE.bottom }));
      const hasRoom = x > EDGE.left + 12 && x < this.width - 18;
      if (hasRoom) nodes.push(svg("text", { x, y: HEIGHT - 5, "text-anchor": "middle" }, clockTime(at, false)));
    }
    return nodes;
  }

  /** One path for each series; the bars of a bucket are stacked. */
  bars() {
    const { values, num } = this.data;
    const width = Math.max(1, this.x(1) - this.x(0) - 1).toFixed(2);
    const below = new Array(num).fill(0);
    return values.map((list, place) => {
      let path = "";
      for (let i = 0; i < num; i += 1) {
        if (list[i] <= 0) continue;
        const foot = this.y(below[i]);
        below[i] += list[i];
        path += `M${this.x(i).toFixed(2)} ${foot.toFixed(2)}V${this.y(below[i]).toFixed(2)}h${width}V${foot.toFixed(2)}z`;
      }
      return svg("path", { class: this.series[place].className, d: path });
    });
  }

  /** One path for each series, broken where there is no value; a single value is a small ring. */
  lines() {
    return this.data.values.map((list, place) => {
      let path = "";
      list.forEach((value, i) => {
        if (value === null) return;
        const isFirst = i === 0 || list[i - 1] === null;
        path += `${isFirst ? "M" : "L"}${this.x(i + 0.5).toFixed(2)} ${this.y(value).toFixed(2)}`;
        if (isFirst && (list[i + 1] ?? null) === null) path += "m-2 0a2 2 0 1 0 4 0a2 2 0 1 0 -4 0";
      });
      return svg("path", { class: this.series[place].className, d: path });
    });
  }

  indexAt(event) {
    if (!this.data) return null;
    const x = event.clientX - this.canvas.getBoundingClientRect().left;
    const share = (x - EDGE.left) / (this.width - EDGE.left - EDGE.right);
    return Math.min(Math.max(Math.floor(share * this.data.num), 0), this.data.num - 1);
  }

  onKey(event) {
    if (!this.data) return;
    const last = this.data.num - 1;
    const now = this.index ?? last + 1;
    const next = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: last }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    this.read(Math.min(Math.max(next, 0), last));
  }

  /** Show the values of a bucket. */
  read(index) {
    this.index = index;
    if (!this.data || !this.cursor) return;
    this.cursor.setAttribute("visibility", index === null ? "hidden" : "visible");
    if (index === null) {
      this.readout.textContent = "";
      return;
    }
    const { startS, bucketS, values } = this.data;
    for (const end of ["x1", "x2"]) this.cursor.setAttribute(end, this.x(index + 0.5));
    const said = this.series.map(({ label }, place) => `${label} ${this.format(values[place][index])}`);
    this.readout.textContent = `${clockTime(startS + index * bucketS)}  ${said.join(" · ")}`;
  }

  /** The description for screen readers. */
  summary() {
    const said = this.series.map(({ label }, place) => {
      const values = this.data.values[place].filter((value) => value !== null);
      return values.length ? `${label}: now ${this.format(values.at(-1))}, at most ${this.format(Math.max(...values))}` : `${label}: no value`;
    });
    return `${this.title}. ${said.join(". ")}. Arrow keys read single values.`;
  }
}
