// graphile-worker. Best: batching as in https://worker.graphile.org/docs/performance (local queue, batched completion).
import { Logger, makeWorkerUtils, run as start } from "graphile-worker";
import { batches, best, connectionString, Count, note, run, Steady, timed } from "../common.js";

const logger = new Logger(() => () => {});
const fast = { worker: { localQueue: { size: 5000 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 } };

async function withUtils(work) {
  const utils = await makeWorkerUtils({ connectionString, logger });
  const answer = await work(utils);
  await utils.release();
  return answer;
}

await run({
  prepare: () => withUtils(async (utils) => void (await utils.migrate())),

  publish: (count) =>
    withUtils((utils) =>
      timed(count, async () => {
        for (const numbers of batches(count, 1000))
          await utils.addJobs(numbers.map((n) => ({ identifier: "noop", payload: note(n) })));
      }),
    ),

  drain: async (expected) => {
    const count = new Count(expected);
    const options = best ? { concurrency: 500, preset: fast } : {};
    const runner = await start({
      connectionString, logger, noHandleSignals: true, ...options,
      taskList: { noop: () => count.add() },
    });
    await count.all;
    await runner.stop(); // returns when the last completions are stored
    return count.result();
  },

  steady: (seconds, rate) =>
    withUtils(async (utils) => {
      const steady = new Steady();
      const runner = await start({
        connectionString, logger, noHandleSignals: true, concurrency: 500, preset: fast,
        taskList: { noop: (payload) => steady.started(payload.number) },
      });
      const send = (numbers) => utils.addJobs(numbers.map((n) => ({ identifier: "noop", payload: note(n) })));
      await steady.publish(seconds, rate, send);
      await runner.stop();
      return steady.answer();
    }),
});
