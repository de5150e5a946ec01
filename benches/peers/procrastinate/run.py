"""procrastinate. Best: thirty jobs at once; default: one at a time."""

import asyncio
import json
import os
import sys
import time

import procrastinate

BEST = os.environ.get("PEER_MODE") != "default"
app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=os.environ["DATABASE_URL"], max_size=20))
finished, three_quarters = 0, None
expected = int(sys.argv[2]) if len(sys.argv) > 2 else 0


@app.task(name="noop", queue="noop")
async def noop(number, text):
    global finished, three_quarters
    finished += 1
    if three_quarters is None and finished >= expected * 0.75:
        three_quarters = finished, time.perf_counter()


async def prepare(_):
    await app.schema_manager.apply_schema_async()
    return {}


async def publish(count):
    began = time.perf_counter()
    for start in range(0, count, 1000):
        numbers = range(start, min(start + 1000, count))
        await noop.batch_defer_async(*({"number": number, "text": "x" * 170} for number in numbers))
    return {"jobs": count, "seconds": time.perf_counter() - began}


async def drain(_):
    began = time.perf_counter()
    options = {"concurrency": 30} if BEST else {}
    await app.run_worker_async(wait=False, listen_notify=False, install_signal_handlers=False, **options)
    now = time.perf_counter()
    before, at = three_quarters
    return {"jobs": finished, "seconds": now - began, "last": {"jobs": finished - before, "seconds": now - at}}


async def main():
    async with app.open_async():
        print(json.dumps(await {"prepare": prepare, "publish": publish, "drain": drain}[sys.argv[1]](expected)))


asyncio.run(main())
