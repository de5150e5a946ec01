// What the runners on Node share: the contract `prepare`, `publish N`, `drain N`, and when three quarters were done.

export const note = (number) => ({ number, text: "x".repeat(170) });
export const best = process.env.PEER_MODE !== "default";
export const connectionString = process.env.DATABASE_URL;

export async function run(verbs) {
  const [verb, count] = process.argv.slice(2);
  if (!verbs[verb]) throw new Error(`verb: must be one of ${Object.keys(verbs).join(", ")}, got ${verb}`);
  console.log(JSON.stringify((await verbs[verb](Number(count))) ?? {}));
  process.exit(0);
}

export async function timed(jobs, work) {
  const began = performance.now();
  await work();
  return { jobs, seconds: (performance.now() - began) / 1000 };
}

/** Counts jobs; `all` resolves when the last one was counted. */
export class Count {
  constructor(expected) {
    this.expected = expected;
    this.done = 0;
    this.began = performance.now();
    this.all = new Promise((resolve) => (this.resolve = resolve));
  }

  add(jobs = 1) {
    this.done += jobs;
    if (this.most === undefined && this.done >= this.expected * 0.75)
      this.most = { done: this.done, at: performance.now() };
    if (this.done >= this.expected) this.resolve();
  }

  /** To be called when everything is recorded. */
  result() {
    const now = performance.now();
    const last = { jobs: this.done - this.most.done, seconds: (now - this.most.at) / 1000 };
    return { jobs: this.done, seconds: (now - this.began) / 1000, last };
  }
}

export function* batches(count, size) {
  for (let from = 0; from < count; from += size)
    yield Array.from({ length: Math.min(size, count - from) }, (_, n) => from + n);
}
