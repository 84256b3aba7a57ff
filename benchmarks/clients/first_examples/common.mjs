// Common parts of the scripts of first examples: the addresses, and steps that are reported one by one.
export const SERVER = process.env.CLIENT_SERVER_URL;
export const PLATFORM = process.env.CLIENT_PLATFORM_URL;
export const MODEL = process.env.CLIENT_MODEL;
export const QUESTION = "What is the capital of France?";

export async function step(name, run) {
  let error = null;
  try {
    await run();
  } catch (failure) {
    console.error(failure);
    error = `${failure.name}: ${failure.message}`.slice(0, 500);
  }
  console.log(JSON.stringify({ step: name, error }));
}

export function expect(condition, what) {
  if (!condition) throw new Error(`expected ${what}`);
}
