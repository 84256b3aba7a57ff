// The platform's public APIs, as any SDK calls them; with a bearer key if the platform requires one.

import { errorText, isUnreachable } from "./events.js";

const KEY = "headrace.key";

export class ApiError extends Error {
  constructor(message, code, status) {
    super(message);
    this.code = code;
    this.status = status;
  }

  /** Whether Describe or Delete reported a missing resource. */
  get isMissing() {
    return this.message.startsWith("Could not find") || this.code === "ResourceNotFoundException";
  }
}

export const accessKey = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (key) => (key ? sessionStorage.setItem(KEY, key) : sessionStorage.removeItem(KEY)),
};

/** The `Authorization` header with the key, if there is one. */
export function authorization() {
  const key = accessKey.get();
  return key ? { Authorization: `Bearer ${key}` } : {};
}

/** Set the callback for refusals that need a key: `(message) => …`. */
export const onRefused = { listener: () => {} };

/** Return an error in one sentence; browsers phrase a missing answer in their own ways. */
export const messageOf = (error) => (isUnreachable(error) ? "The platform cannot be reached." : error.message);

async function checked(response) {
  if (response.ok) return response;
  const code = (response.headers.get("x-amzn-errortype") ?? "").split(":")[0];
  const error = new ApiError(await errorText(response), code, response.status);
  if (response.status === 401 || response.status === 403) onRefused.listener(error.message);
  throw error;
}

/** Call a JSON API, such as `SageMaker.ListEndpoints`. */
export async function call(target, parameters = {}, signal = undefined) {
  const response = await checked(
    await fetch("/", {
      method: "POST",
      headers: { "Content-Type": "application/x-amz-json-1.1", "X-Amz-Target": target, ...authorization() },
      body: JSON.stringify(parameters),
      signal,
    }),
  );
  const text = await response.text();
  return text ? JSON.parse(text) : {};
}

/** `GET` the console's own numbers. */
export async function numbers(path, signal) {
  return (await checked(await fetch(`/console/api/${path}`, { headers: authorization(), signal }))).json();
}

/** The facts that `GET /v1/models` has about a model: an endpoint or a component. */
export async function modelFacts(name) {
  return (await checked(await fetch(`/v1/models/${encodeURIComponent(name)}`, { headers: authorization() }))).json();
}

/** Send a request about access keys: GET, POST a note, or DELETE one by its id. */
export async function keyRequest(method, id, body, signal) {
  const path = `/console/api/keys${id && `/${encodeURIComponent(id)}`}`;
  const response = await checked(await fetch(path, { method, headers: authorization(), body: body && JSON.stringify(body), signal }));
  return response.status === 204 ? null : response.json();
}

/** Like `call`, but ignores a missing resource. */
export async function callUnlessMissing(target, parameters, signal = undefined) {
  try {
    return await call(target, parameters, signal);
  } catch (error) {
    if (error instanceof ApiError && error.isMissing) return null;
    throw error;
  }
}

let account; // of the platform, fetched once

/** The account number in all ARNs. */
export async function accountNumber() {
  if (account) return account;
  const form = new URLSearchParams({ Action: "GetCallerIdentity", Version: "2011-06-15" });
  const response = await checked(await fetch("/", { method: "POST", headers: authorization(), body: form }));
  account = /<Account>(\d+)<\/Account>/.exec(await response.text())?.[1] ?? "000000000000"; // the page may parse no XML: trusted types
  return account;
}
