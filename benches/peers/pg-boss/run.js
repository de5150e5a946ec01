// pg-boss. Best: fetch() and complete() by the thousand in two loops, the interface it offers for own workers, which
// beats work(); default: work() as in its README, which fetches one job every two seconds.
import { PgBoss } from "pg-boss";
import { batches, best, connectionString, Count, note, run, timed } from "../common.js";

const QUEUE = "noop";

async function withBoss(work) {
  const boss = new PgBoss({ connectionString });
  boss.on("error", (error) => { throw error; });
  await boss.start();
  const answer = await work(boss);
  await boss.stop({ graceful: true, wait: true });
  return answer;
}

async function loop(boss, count) {
  for (;;) {
    const jobs = await boss.fetch(QUEUE, { batchSize: 2000 });
    if (jobs.length === 0) return;
    await boss.complete(QUEUE, jobs.map((job) => job.id));
    count.add(jobs.length);
  }
}

await run({
  prepare: () => withBoss((boss) => boss.createQueue(QUEUE)),

  publish: (count) =>
    withBoss((boss) =>
      timed(count, async () => {
        for (const numbers of batches(count, 1000)) await boss.insert(QUEUE, numbers.map((n) => ({ data: note(n) })));
      }),
    ),

  drain: (expected) =>
    withBoss(async (boss) => {
      const count = new Count(expected);
      if (best) {
        await Promise.all([loop(boss, count), loop(boss, count)]);
        return count.result();
      }
      await boss.work(QUEUE, async (jobs) => count.add(jobs.length));
      await count.all;
      await boss.offWork(QUEUE, { wait: true });
      return count.result();
    }),
});
