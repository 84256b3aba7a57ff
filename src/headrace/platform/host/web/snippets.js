// Code that calls an endpoint, complete enough to be pasted into a shell or a file.

import { copyButton } from "./clipboard.js";
import { element } from "./dom.js";

const QUESTION = "How does rain form?";
const DEFAULT_ORIGIN = "http://127.0.0.1:7450"; // the CLI finds it without --url
const CHOICE = "headrace.console.client";
let platform = { region: "us-east-1", asks_for_keys: false };

/** Ask the platform once for its region and whether it requires keys. */
export async function learnPlatform() {
  try {
    const answer = await fetch("/health"); // 503 while it drains, with the same facts
    platform = { ...platform, ...(await answer.json()) };
  } catch {
    // not reachable: the snippets keep the defaults until the page is loaded again
  }
}

/** The option that names this platform for `headrace`; empty for the default address. */
export const urlOption = () => (location.origin === DEFAULT_ORIGIN ? "" : ` --url ${location.origin}`);

const cliOf = (name) => `headrace invoke ${name} "${QUESTION}"${urlOption()}`;

function curlOf(name) {
  const key = platform.asks_for_keys ? ` \\\n  -H "Authorization: Bearer $AWS_SECRET_ACCESS_KEY"` : "";
  const before = platform.asks_for_keys ? 'eval "$(headrace env)"  # the access key\n' : "";
  return `${before}curl -N ${location.origin}/v1/chat/completions -H 'Content-Type: application/json'${key} \\
  -d '{"model": "${name}", "stream": true, "temperature": 0.2, "messages": [{"role": "user", "content": "${QUESTION}"}]}'`;
}

function boto3Of(name, component) {
  const any = `\n    aws_access_key_id="any",\n    aws_secret_access_key="any",`;
  const [source, keys] = platform.asks_for_keys ? [' # keys: eval "$(headrace env)"', ""] : ["", any];
  return `import boto3${source}

runtime = boto3.client(
    "sagemaker-runtime",
    endpoint_url="${location.origin}",
    region_name="${platform.region}",${keys}
)
answer = runtime.invoke_endpoint(
    EndpointName="${name}",${component ? `\n    InferenceComponentName="${component}",` : ""}
    ContentType="application/json",
    Body='{"messages": [{"role": "user", "content": "${QUESTION}"}], "max_tokens": 100, "temperature": 0.2}',
)
print(answer["Body"].read().decode())`;
}

function openaiOf(name) {
  const [before, key] = platform.asks_for_keys ? ["import os\n\n", 'os.environ["AWS_SECRET_ACCESS_KEY"]'] : ["", '"any"'];
  const source = platform.asks_for_keys ? '  # eval "$(headrace env)" sets the key' : "";
  return `${before}from openai import OpenAI

client = OpenAI(base_url="${location.origin}/v1", api_key=${key})${source}
answer = client.chat.completions.create(
    model="${name}",
    messages=[{"role": "user", "content": "${QUESTION}"}],
    temperature=0.2,
)
print(answer.choices[0].message.content)`;
}

/** The calls of an endpoint, or of one of its components: one is shown, buttons choose another. */
export function snippets(name, component) {
  const all = [
    ["Command line", cliOf(component ?? name)],
    ["Python: boto3", boto3Of(name, component)],
    ["Python: openai", openaiOf(component ?? name)],
    ["curl", curlOf(component ?? name)],
  ];
  const figures = all.map(([title, code]) => snippet("", code, title));
  const buttons = all.map(([title]) => element("button", { type: "button", textContent: title }));
  const choose = (chosen) => {
    figures.forEach((figure, place) => (figure.hidden = place !== chosen));
    buttons.forEach((button, place) => button.setAttribute("aria-pressed", place === chosen));
  };
  buttons.forEach((button, place) => {
    button.addEventListener("click", () => (localStorage.setItem(CHOICE, place), choose(place)));
  });
  choose(Math.min(all.length - 1, Number(localStorage.getItem(CHOICE) ?? 0) || 0));
  return [element("div", { className: "choice-buttons", role: "group", "aria-label": "Client" }, ...buttons), ...figures];
}

/** A block of code with its title and a button that copies it; `what` names the code for screen readers. */
export function snippet(title, code, what = title) {
  const head = element("figcaption", {}, element("strong", { textContent: title }), copyButton(code, what));
  return element("figure", { className: "snippet" }, head, element("pre", { tabIndex: 0 }, element("code", { textContent: code })));
}
