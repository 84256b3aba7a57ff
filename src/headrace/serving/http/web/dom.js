// DOM helpers for all pages.

export const $ = (id) => document.getElementById(id);

/** Create an element with properties and children. Text never becomes HTML. */
export function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role") node.setAttribute(name, value);
    else if (name === "dataset") Object.assign(node.dataset, value);
    else node[name] = value;
  }
  node.append(...children);
  return node;
}

/** Apply the light or dark theme: the stored choice, otherwise the system's; `button` changes it. */
export function initTheme(button) {
  const set = (theme) => {
    document.documentElement.dataset.theme = theme;
    localStorage.setItem("headrace.theme", theme);
  };
  button.addEventListener("click", () => set(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  document.documentElement.dataset.theme = localStorage.getItem("headrace.theme") ?? system;
}
