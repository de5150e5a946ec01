// What the runners on Node share: the contract `prepare`, `publish N`, `drain N`, `steady SECONDS RATE`, and when three quarters were done.

import { setTimeout as sleep } from "node:timers/promises";

export const note = (number) => ({ number, text: "x".repeat(170) });
export const best = process.env.PEER_MODE !== "default";
export const connectionString = process.env.DATABASE_URL;

export async function run(verbs) {
  const [verb, ...numbers] = process.argv.slice(2);
  if (!verbs[verb]) throw new Error(`verb: must be one of ${Object.keys(verbs).join(", ")}, got ${verb}`);
  console.log(JSON.stringify((await verbs[verb](...numbers.map(Number))) ?? {}));
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

/** The wait that so many of a hundred do not exceed. */
function waitsMs(waits) {
  const sorted = Float64Array.from(waits).sort();
  return (percent) => sorted[Math.ceil(((sorted.length - 1) * percent) / 100)];
}

/** The same as common/src/steady.rs. */
export class Steady {
  published = []; // when each job was about to be published; undefined after its start
  waits = [];
  doubled = 0;

  get backlog() {
    return this.published.length - this.waits.length;
  }

  async publish(seconds, rate, send) {
    const began = performance.now();
    const samples = [];
    const starts = [0]; // how many had started at each sample
    let greatest = 0;
    for (let elapsed = 0; elapsed < seconds; elapsed = (performance.now() - began) / 1000) {
      greatest = Math.max(greatest, this.backlog);
      while (elapsed >= 10 * (samples.length + 1)) {
        samples.push(this.backlog);
        starts.push(this.waits.length);
      }
      const from = this.published.length;
      const numbers = Array.from({ length: Math.min(1000, Math.floor(elapsed * rate) - from) }, (_, n) => from + n);
      const now = performance.now();
      for (const number of numbers) this.published[number] = now;
      if (numbers.length) await send(numbers);
      await sleep(10 - ((performance.now() - began) % 10));
    }
    const waits = samples.map((_, n) => waitsMs(this.waits.slice(starts[n], starts[n + 1])));
    this.told = { backlog_at_end: this.backlog, greatest_backlog: greatest, backlog_each_10_s: samples,
      waits_each_10_s: waits.map((ms) => [ms(50), ms(99)]) };
    const over = performance.now() + 120_000;
    while (this.backlog > 0 && performance.now() < over) await sleep(10);
  }

  started(number) {
    if (this.published[number] === undefined) this.doubled += 1;
    else this.waits.push(performance.now() - this.published[number]);
    this.published[number] = undefined;
  }

  answer() {
    const ms = waitsMs(this.waits);
    const of = { p50_ms: ms(50), p95_ms: ms(95), p99_ms: ms(99), most_ms: ms(100) };
    return { published: this.published.length, started: this.waits.length, doubled: this.doubled, ...this.told, ...of };
  }
}
