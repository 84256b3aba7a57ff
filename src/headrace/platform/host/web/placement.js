// Which copies are on which instance, and how full the instances are. An instance is virtual: it has the resources of its type on
// AWS; the real machine of a copy is named if it is another one.

import { svg } from "./charts.js";
import { element } from "./dom.js";

const MAX_INSTANCES = 60;
const NUM_TONES = 6;
const LOCAL = new Set(["", "127.0.0.1", "::1", "localhost"]);
const STATES = { serving: "good", failed: "bad", unhealthy: "bad", leaving: "leaving" };
const RESOURCES = [
  { name: "cpus", label: "CPU", unit: "", scale: 1 },
  { name: "accelerators", label: "Accelerators", unit: "", scale: 1 },
  { name: "memory_mb", label: "Memory", unit: " GB", scale: 1024 },
];

const trimmed = (value) => String(Number(value.toFixed(value < 10 ? 1 : 0)));

/** The requirements of a copy: "2 CPU, 1 GB". */
export function needText(need) {
  const said = [
    need.cpus && `${trimmed(need.cpus)} CPU`,
    need.accelerators && `${trimmed(need.accelerators)} accelerator${need.accelerators > 1 ? "s" : ""}`,
    need.memory_mb && (need.memory_mb < 1024 ? `${trimmed(need.memory_mb)} MB` : `${trimmed(need.memory_mb / 1024)} GB`),
  ].filter(Boolean);
  return said.join(", ") || "not declared";
}

/** Draw the hosts of an endpoint into an element. */
export function drawPlacement(place, endpoint, components, hosts) {
  const tones = new Map(components.map((component, i) => [component.name, `tone-${i % NUM_TONES}`]));
  place.replaceChildren(...hosts.flatMap((host) => hostNodes(host, endpoint, tones)));
}

function hostNodes(host, endpoint, tones) {
  const count = host.instances.length;
  const title = `Variant ${host.variant}: ${count} ${count === 1 ? "instance" : "instances"} of type ${host.instance_type}`;
  const cards = host.instances.slice(0, MAX_INSTANCES).map((instance) => card(instance, host.has, endpoint, tones));
  const nodes = [element("h3", { textContent: title }), element("div", { className: "instances" }, ...cards)];
  if (count > cards.length) nodes.push(element("p", { className: "note", textContent: `And ${count - cards.length} more.` }));
  return nodes;
}

function card(instance, has, endpoint, tones) {
  const bars = RESOURCES.filter(({ name }) => has[name] !== 0).map((resource) => bar(resource, instance.copies, has, tones));
  const copies = instance.copies.map((copy) => copyNode(copy, endpoint, tones));
  return element(
    "article",
    { className: "instance", "aria-label": `Instance ${instance.id}` },
    element("h4", { textContent: instance.id }),
    element("div", { className: "bars-of" }, ...bars),
    copies.length ? element("ul", {}, ...copies) : element("p", { className: "note", textContent: "No copies." }),
  );
}

/** The used share of a resource, a part for each copy. */
function bar({ name, label, unit, scale }, copies, has, tones) {
  const taken = copies.reduce((sum, copy) => sum + copy.need[name], 0);
  const whole = has[name] ?? Math.max(taken, 1); // the capacity is unknown
  const parts = [];
  let start = 0;
  for (const copy of copies) {
    const width = (100 * copy.need[name]) / whole;
    parts.push(svg("rect", { class: tones.get(copy.component) ?? "", x: `${start}%`, width: `${width}%`, height: 8 }));
    if (start > 0) parts.push(svg("line", { class: "cut", x1: `${start}%`, x2: `${start}%`, y1: 0, y2: 8 }));
    start += width;
  }
  const [some, all] = [taken, whole].map((value) => trimmed(value / scale));
  const said = has[name] === null ? `${some}${unit} taken` : `${some} of ${all}${unit}`;
  return element(
    "div",
    { className: "taken" },
    element("span", { textContent: label }),
    svg("svg", { height: 8, "aria-hidden": "true" }, svg("rect", { class: "free", width: "100%", height: 8 }), ...parts),
    element("span", { className: "number", textContent: said }),
  );
}

function copyNode(copy, endpoint, tones) {
  const kind = STATES[copy.state] ?? "moving";
  const link = element("a", {
    href: `#/${encodeURIComponent(endpoint)}/logs/${encodeURIComponent(copy.component)}/${encodeURIComponent(copy.log_stream)}`,
    title: `The log of ${copy.log_stream}`,
    textContent: copy.component,
  });
  const places = [LOCAL.has(copy.host) ? "" : copy.host, copy.gpus.length ? `GPU ${copy.gpus.join(", ")}` : ""].filter(Boolean);
  const where = places.length ? [element("span", { className: "note", textContent: `on ${places.join(", ")}` })] : [];
  const tone = element("i", { className: tones.get(copy.component) ?? "" });
  return element("li", {}, tone, link, element("span", { className: `state ${kind}`, textContent: copy.state }), ...where);
}
