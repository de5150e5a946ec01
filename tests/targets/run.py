#!/usr/bin/env python3
"""Runs handlers in other languages as their users do: with the program `tidegate-relay`, the files of examples/any-language, and
stand-ins for AWS. The libraries of the handlers are the published ones: Powertools, standardwebhooks, cloudevents. recipes.py has the recipes of
the handbook, cron.py the files for clusters.

`run.py` runs all; `run.py NAME…` runs some; `run.py --program PATH NAME…` takes another program, such as the packaged one.
"""

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent / "scripts"), str(HERE)]

import cron  # noqa: E402
import local  # noqa: E402
import postgres  # noqa: E402
import recipes  # noqa: E402
import release  # noqa: E402
import tools  # noqa: E402
from adapters import conformance  # noqa: E402
from stubs import Invoke, Looked, Queue, Raw, Runtime, Served  # noqa: E402

EXAMPLES = tools.PROJECT / "examples" / "any-language"
PACKAGES = ("aws-lambda-powertools==3.37.0", "pydantic==2.14.4", "standardwebhooks==1.1.0", "cloudevents==2.2.0", "fastapi==0.165.0",
            "uvicorn==0.54.0")
MOTO = "moto[events,server,sqs]==5.2.1"
PSYCOPG = "psycopg[binary]==3.3.9"
PSQL = postgres.installation(postgres.WHEEL_MAJOR).program("psql")
KEY = "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER_KEY = "whsec_" + "C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
LIMIT_S = 400
AWS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "eu-central-1", "AWS_EC2_METADATA_DISABLED": "true"}


def arn(name):
    return f"arn:aws:lambda:eu-central-1:123456789012:function:{name}:live"


class Relay:
    """The program, with a database and a file of targets."""

    def __init__(self, started, program=None):
        self.program = program or local.build("--package", "tidegate-relay", "--bin", "tidegate-relay") / "tidegate-relay"
        self.environment = {**local.environment(), **started.enter_context(local.postgres("--fast")), **AWS}
        self.database = local.Database(self.environment["DATABASE_URL"])
        self.room = Path(started.enter_context(tempfile.TemporaryDirectory()))

    def run(self, *words, code=0, **variables):
        done = subprocess.run([self.program, *words], env={**self.environment, **variables}, capture_output=True, text=True, timeout=LIMIT_S)
        assert done.returncode == code, f"{words}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def at(self, database, user="postgres"):
        """The URL of a database of the same server."""
        return re.sub("//[^@/]*@?([^/]*)/.*", f"//{user}@\\1/{database}", self.environment["DATABASE_URL"])

    def declare(self, text):
        """Stores a file of targets, and forgets all events before."""
        file = self.room / "tidegate.toml"
        file.write_text(text)
        self.run("migrate", "--targets", str(file))
        self.database.run("DELETE FROM tidegate.lease; DELETE FROM tidegate.event_queue; DELETE FROM tidegate.event_log; DELETE FROM tidegate.service")

    def publish(self, kind, payloads, group=None):
        events = [{"kind": kind, "payload": payload, "group_key": group and group(payload)} for payload in payloads]
        self.database.connection.run("SELECT count(*) FROM tidegate.publish_many(CAST(:events AS jsonb))", events=json.dumps(events))

    def drain(self, **variables):
        """Drains what is ready. Its budget is for busy machines: it ends when nothing is ready."""
        self.run("drain", "--budget", "60s", **variables)

    def drained(self, **variables):
        """Drains until no event is left."""
        deadline = time.monotonic() + LIMIT_S
        while self.database.holds("SELECT count(*) FROM tidegate.event_queue"):
            assert time.monotonic() < deadline, self.waiting()
            self.drain(**variables)

    def waiting(self):
        return self.database.run("SELECT kind, attempts, errors::text FROM tidegate.event_queue LIMIT 5")

    def ended(self):
        """How many events have ended with which status and after how many attempts."""
        rows = self.database.run("SELECT status, attempts, count(*) FROM tidegate.event_log GROUP BY 1, 2 ORDER BY 1, 2")
        return {(status, attempts): count for status, attempts, count in rows}

    def left(self):
        rows = self.database.run("SELECT attempts, coalesce(errors->-1->>'code', ''), count(*) FROM tidegate.event_queue GROUP BY 1, 2 ORDER BY 1, 2")
        return {(attempts, code): count for attempts, code, count in rows}


    def state(self, target):
        """Why the latest call of a target failed."""
        return self.database.holds(f"SELECT last_error FROM tidegate.service WHERE service = '{target}'")


def orders(count, **of):
    return [{"order_id": number, "sku": of.get(f"_{number}", "tea")} for number in range(count)]


SHIP = """
[targets.ship]
lambda = "{arn}"
batch = 10
within = "1s"
timeout = "50s"
{more}
[kinds]
order_placed = {{ target = "ship", attempts = 3, backoff = "1h", backoff_max = "1h" }}
"""


def ship(more="", **options):
    """The file with one target, with other values of some options; `alone=True` for one event a call."""
    text = SHIP.format(arn=arn("ship"), more=more)
    if options.pop("alone", False):
        text = text.replace("batch = 10\nwithin = \"1s\"\n", "")
    for name, value in options.items():
        text = re.sub(rf"\b{name} = [^\s,}}]+", f"{name} = {value}", text)
    return text


def powertools(relay):
    """Ten records, of which two fail: eight are done, and two have spent an attempt."""
    handler = importlib.import_module("powertools_handler").handler
    relay.declare(ship())
    relay.publish("order_placed", orders(10, _3="sold out", _7="sold out"))
    with Invoke({"ship": lambda event: handler(event, None)}) as aws:
        relay.drain(AWS_ENDPOINT_URL_LAMBDA=aws.url, TIDEGATE_CONCURRENCY="32")
        assert aws.sizes("ship") == [10], aws.sizes("ship")
    assert relay.ended() == {("COMPLETED", 1): 8}, relay.ended()
    assert relay.left() == {(1, "failed"): 2}, relay.left()


def all_raise(relay):
    """If all fail, each has failed. A Powertools that raises fails the call: smaller ones follow, and only what is alone is charged."""
    powertools = importlib.import_module("powertools_handler")
    for raises, sizes, wanted in [(False, [4], "failed"), (True, [4, 1, 1, 1, 1], "BatchProcessingError")]:
        powertools.processor.raise_on_entire_batch_failure = raises
        relay.declare(ship(batch=4, attempts=1))
        relay.publish("order_placed", orders(4, _0="sold out", _1="sold out", _2="sold out", _3="sold out"))
        with Invoke({"ship": lambda event: powertools.handler(event, None)}) as aws:
            relay.drained(AWS_ENDPOINT_URL_LAMBDA=aws.url)
            assert aws.sizes("ship") == sizes, aws.sizes("ship")
        assert relay.ended() == {("FAILED", 1): 4}, relay.ended()
        code = relay.database.holds("SELECT errors->0->>'code' FROM tidegate.event_log ORDER BY id DESC LIMIT 1")
        assert code == wanted, code
    powertools.processor.raise_on_entire_batch_failure = False


def fifo(relay):
    """Behind a failure, a FIFO processor starts nothing. With `stops_at_first_failure` that costs the neighbours no attempt."""
    for more, done, failed in [("stops_at_first_failure = true", 4, 1), ("", 2, 3)]:
        handler = importlib.reload(importlib.import_module("fifo_handler")).handler
        relay.declare(ship(more, batch=5))
        relay.publish("order_placed", orders(5, _2="sold out"), group=lambda order: f"order {order['order_id']}")
        with Invoke({"ship": lambda event: handler(event, None) if len(aws.calls) == 1 else None}) as aws:
            relay.drain(AWS_ENDPOINT_URL_LAMBDA=aws.url)
        assert aws.sizes("ship")[0] == 5, aws.sizes("ship")
        assert relay.ended() == {("COMPLETED", 1): done}, (more, relay.ended())
        assert relay.left() == {(1, "failed"): failed}, (more, relay.left())


def record(relay):
    """Powertools' model of SQS events, which requires every field, takes our records. Ids are stable over the attempts."""
    from aws_lambda_powertools.utilities.parser.models import SqsModel
    relay.declare(ship(backoff='"1ms"', backoff_max='"1ms"'))
    relay.publish("order_placed", [{"order_id": 7, "sku": "Tee „grün“"}], group=lambda _: "Größe 7")
    seen = []

    def judge(event):
        seen.append(SqsModel.model_validate(event).Records[0])
        return {"batchItemFailures": [{"itemIdentifier": seen[-1].messageId}] if len(seen) < 3 else []}

    with Invoke({"ship": judge}) as aws:
        relay.drained(AWS_ENDPOINT_URL_LAMBDA=aws.url)
    assert [one.attributes.ApproximateReceiveCount for one in seen] == ["1", "2", "3"], seen
    assert len({one.messageId for one in seen}) == 1 and json.loads(seen[0].body)["sku"] == "Tee „grün“", seen
    assert seen[0].attributes.MessageGroupId == "Größe 7", seen
    relay.run("replay", "--kind", "order_placed", "--status", "COMPLETED", "--since", "1h", "--reason", "once more")
    with Invoke({"ship": judge}) as aws:
        relay.drained(AWS_ENDPOINT_URL_LAMBDA=aws.url)
    assert len(seen) == 4 and seen[3].messageId != seen[0].messageId, seen


def broken_deployment(relay):
    """While a deployment is broken, a few events spend an attempt, and the others wait. Then all are done."""
    relay.declare(ship(alone=True, backoff='"100ms"', backoff_max='"100ms"', attempts=20))
    relay.publish("order_placed", orders(1000))
    broken = threading.Event()
    broken.set()

    def function(event):
        if broken.is_set():
            raise RuntimeError("Unable to import module")
        return {"batchItemFailures": []}

    with Invoke({"ship": function}) as aws:
        relay.drain(AWS_ENDPOINT_URL_LAMBDA=aws.url)
        early = len(aws.calls)
        broken.clear()
        relay.drained(AWS_ENDPOINT_URL_LAMBDA=aws.url)
    spent = relay.database.holds("SELECT sum(attempts - 1) FROM tidegate.event_log")
    assert set(status for status, _ in relay.ended()) == {"COMPLETED"}, relay.ended()
    assert int(spent) <= early < 100, (early, spent)


def poison(relay):
    """One event that always breaks the function ends after its attempts, and costs its neighbours none."""
    relay.declare(ship(backoff='"1ms"', backoff_max='"1ms"'))
    relay.publish("order_placed", orders(1000, _500="poison"))

    def function(event):
        if any(json.loads(one["body"])["sku"] == "poison" for one in event["Records"]):
            raise MemoryError("out of memory")
        return None

    with Invoke({"ship": function}) as aws:
        relay.drained(AWS_ENDPOINT_URL_LAMBDA=aws.url)
    assert relay.ended() == {("COMPLETED", 1): 999, ("FAILED", 3): 1}, relay.ended()


def hung(relay):
    """A function that hangs holds up no event of another one, and the drain ends in its time."""
    text = ship(f'[targets.quick]\nlambda = "{arn("quick")}"', alone=True, timeout='"1s"')
    relay.declare(text + 'quick_done = { target = "quick" }\n')
    relay.publish("order_placed", orders(20))
    relay.publish("quick_done", orders(50))
    release = threading.Event()
    functions = {"ship": lambda event: release.wait(30), "quick": lambda event: None}
    with Invoke(functions) as aws:
        relay.drain(AWS_ENDPOINT_URL_LAMBDA=aws.url, TIDEGATE_CONCURRENCY="8")
        release.set()
        calls = len(aws.sizes("ship"))
    assert relay.ended() == {("COMPLETED", 1): 50}, relay.ended()
    spent = relay.database.holds("SELECT sum(attempts) FROM tidegate.event_queue")
    # On a busy machine a call may have no time left to be made.
    assert max(int(spent), calls) <= 5 + 8, (spent, calls, relay.left())


def cut(relay):
    """If the connection breaks after the request was sent, nothing inside of the client sends it again."""
    relay.declare(ship(alone=True, backoff='"1ms"', backoff_max='"1ms"'))
    relay.publish("order_placed", orders(1))
    count = {"calls": 0}

    def function(event):
        count["calls"] += 1
        return Raw() if count["calls"] == 1 else None

    with Invoke({"ship": function}) as aws:
        relay.drained(AWS_ENDPOINT_URL_LAMBDA=aws.url)
    assert count["calls"] == 2, count
    assert relay.ended() == {("COMPLETED", 1): 1}, relay.ended()


def node(relay):
    """A handler in Node that says more: a rejection, a later try, a result, and events that follow."""
    program, _ = tools.node()
    script = "import {handler} from '%s'; let t=''; for await (const c of process.stdin) t+=c; console.log(JSON.stringify(await handler(JSON.parse(t))))"
    script %= (EXAMPLES / "handler.mjs").as_uri()

    def function(event):
        command = [*program, "--input-type=module", "-e", script]
        done = subprocess.run([str(part) for part in command], input=json.dumps(event), capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    relay.declare(ship() + 'order_shipped = "pull"\n')
    relay.publish("order_placed", orders(5, _1="unknown", _2="tomorrow"))
    with Invoke({"ship": function}) as aws:
        relay.drain(AWS_ENDPOINT_URL_LAMBDA=aws.url)
    assert relay.ended() == {("COMPLETED", 1): 3, ("COMPLETED_WITH_ERRORS", 1): 1}, relay.ended()
    assert relay.database.holds("SELECT errors->0->>'code' FROM tidegate.event_log WHERE status = 'COMPLETED_WITH_ERRORS'") == "no_such_sku"
    assert relay.database.holds("SELECT count(*) FROM tidegate.event_log WHERE result->'ship'->>'parcel' LIKE 'parcel-%'") == 3
    kinds = relay.database.run("SELECT kind, count(*) FROM tidegate.event_queue GROUP BY 1 ORDER BY 1")
    assert [list(row) for row in kinds] == [["order_placed", 1], ["order_shipped", 3]], kinds


def bad_neighbours(relay):
    """What the worst answer about one event costs the others: a follow-up of an unknown kind, one that is too long, an answer of 5 MB."""
    def function(event):
        results = []
        for record in event["Records"]:
            sku = json.loads(record["body"])["sku"]
            follow_ups = {"unknown": [{"kind": "nobody"}], "long": [{"kind": "k" * 101}]}.get(sku, [])
            results.append({"itemIdentifier": record["messageId"], "followUps": follow_ups})
            if sku == "wordy":
                return {"batchItemFailures": [], "text": "x" * 5_000_000}
        return {"results": results}

    relay.declare(ship(attempts=2, backoff='"1ms"', backoff_max='"1ms"', batch=4))
    relay.publish("order_placed", orders(40, _3="unknown", _17="long", _30="wordy"))
    with Invoke({"ship": function}) as aws:
        relay.drained(AWS_ENDPOINT_URL_LAMBDA=aws.url)
    rows = relay.database.run("SELECT payload->>'sku', status, attempts, errors->0->>'code' FROM tidegate.event_log WHERE payload->>'sku' <> 'tea' ORDER BY id")
    assert [list(row) for row in rows] == [["unknown", "FAILED", 1, "unstorable"], ["long", "COMPLETED_WITH_ERRORS", 1, "emit"],
                                           ["wordy", "FAILED", 2, "bad_answer"]], rows
    assert relay.ended()[("COMPLETED", 1)] == 37, relay.ended()


BILLING = """
[targets.billing]
https = "{url}/events"
secret = "file:{secret}"
timeout = "50s"
[kinds]
order_paid = {{ target = "billing", attempts = 3, backoff = "1ms", backoff_max = "1ms" }}
"""


def webhooks(relay):
    """Published libraries in Python and Node accept what is sent, and refuse what was changed on its way."""
    secret = relay.room / "secret"
    secret.touch(0o600)
    for name, command in [("webhook.py", _python), ("webhook.mjs", _node)]:
        port = local.free_port()
        with Receiver(command(name, port), port) as receiver, Changing(receiver.url) as between:
            # While one key replaces the other, both sign.
            secret.write_text(f"{OTHER_KEY}\n{KEY}\n")
            relay.declare(BILLING.format(url=receiver.url, secret=secret))
            relay.publish("order_paid", orders(3))
            relay.drain()
            assert relay.ended() == {("COMPLETED", 1): 3}, (name, relay.ended(), relay.left())
            lines = receiver.lines(3)
            assert all(line.startswith("order_paid") and "order_id" in line for line in lines), lines
            relay.declare(BILLING.format(url=between.url, secret=secret))
            for part in ("body", "webhook-timestamp", "webhook-id"):
                between.part = part
                relay.database.run("DELETE FROM tidegate.event_queue; DELETE FROM tidegate.service")
                relay.publish("order_paid", orders(1))
                relay.drain()
                assert (relay.left(), relay.state("billing")) == ({(0, ""): 1}, "credentials"), (name, part, relay.left())


def frameworks(relay):
    """Receivers with FastAPI and Express verify the events, and say which are done, with which result, and which are rejected."""
    secret = relay.room / "secret"
    secret.touch(0o600)
    secret.write_text(KEY)
    for command in (_uvicorn, lambda port: _node("receiver.mjs", port)):
        port = local.free_port()
        with Receiver(command(port), port) as receiver:
            relay.declare(BILLING.format(url=receiver.url, secret=secret))
            relay.publish("order_paid", orders(3, _1="unknown"))
            relay.drain()
            rows = relay.database.run("SELECT status, errors->0->>'code', result->'billing'->>'invoice' FROM tidegate.event_log ORDER BY id")
            done = [["COMPLETED", None, f"invoice-{number}"] for number in (0, 2)]
            assert [list(row) for row in rows] == [done[0], ["COMPLETED_WITH_ERRORS", "no_such_sku", None], done[1]], (rows, relay.waiting())
            secret.write_text(OTHER_KEY)
            relay.publish("order_paid", orders(1))
            relay.drain()
            assert (relay.left(), relay.state("billing")) == ({(0, ""): 1}, "credentials"), relay.left()
            secret.write_text(KEY)


class Changing(Served):
    """Passes requests on, with one part changed."""

    def __init__(self, url):
        self.to, self.part = url, None
        super().__init__()

    def answer(self, path, headers, body):
        import urllib.error
        import urllib.request
        headers = {name: value for name, value in headers.items() if name not in ("host", "content-length")}
        if self.part == "body":
            body = body.replace(b"order_paid", b"order_free")
        else:
            headers[self.part] = str(int(headers[self.part]) + 1) if headers[self.part].isdigit() else headers[self.part] + "x"
        try:
            with urllib.request.urlopen(urllib.request.Request(self.to + path, body, headers)) as said:
                return said.status, {}, b""
        except urllib.error.HTTPError as error:
            return error.code, {}, b""


class Receiver(local.Guarded):
    """A receiver of events in its own process."""

    def __init__(self, command, port):
        words, variables = command
        self.url, self.port = f"http://127.0.0.1:{port}", port
        # What the receivers log of each request says nothing more.
        words = ["sh", "-c", 'exec "$@" 2>/dev/null', "-", *words]
        super().__init__(words, {**local.environment(), **variables}, output=subprocess.PIPE)

    def ready(self):
        self.wait_for(self.port)

    def lines(self, count):
        return [self.process.stdout.readline() for _ in range(count)]


def _python(name, port):
    return [sys.executable, "-u", EXAMPLES / name, port, KEY], {"PYTHONPATH": str(_packages())}


def _uvicorn(port):
    command = [sys.executable, "-m", "uvicorn", "--app-dir", EXAMPLES, "--port", port, "receiver:app"]
    return command, {"PYTHONPATH": str(_packages()), "SECRET": KEY}


def _node(name, port):
    program, npm = tools.node()
    folder = tools.TOOLS / "node-receivers"
    if not (folder / "node_modules").is_dir():
        with tools.in_place_of(folder) as part:
            for file in ("package.json", "package-lock.json"):
                (part / file).write_bytes((EXAMPLES / file).read_bytes())
            tools.npm(npm, part, "ci")
    (folder / name).write_bytes((EXAMPLES / name).read_bytes())
    return [*program, folder / name, port, KEY], {}


def _packages():
    return tools.install(*PACKAGES, dependencies=True)


def redirects(relay):
    """A redirect is not followed, a host that is not allowed is not called, and neither costs an event an attempt."""
    called = []

    class Elsewhere(Served):
        def answer(self, path, headers, body):
            called.append(path)
            return 200, {}, b""

    class Moved(Served):
        def answer(self, path, headers, body):
            return 307, {"location": elsewhere.url}, b""

    secret = relay.room / "secret"
    secret.touch(0o600)
    secret.write_text(KEY)
    with Elsewhere() as elsewhere, Moved() as moved:
        relay.declare(BILLING.format(url=moved.url, secret=secret))
        relay.publish("order_paid", orders(1))
        relay.drain()
        assert (relay.left(), relay.state("billing")) == ({(0, ""): 1}, "307") and not called, (relay.left(), called)
        relay.declare(BILLING.format(url=elsewhere.url, secret=secret))
        relay.publish("order_paid", orders(1))
        relay.drain(TIDEGATE_TARGET_HOSTS="billing.example.com")
        assert not called and relay.left() == {(0, ""): 1}, (relay.left(), called)


WAREHOUSE = """
[targets.warehouse]
sqs = "https://sqs.eu-central-1.amazonaws.com/123456789012/warehouse.fifo"
batch = 10
within = "20ms"
[kinds]
order_shipped = { target = "warehouse", attempts = 20, backoff = "1ms", backoff_max = "50ms" }
"""


def fifo_queue(relay):
    """A FIFO queue receives each group in its order, once, though entries fail, answers are lost and drains are killed."""
    relay.declare(WAREHOUSE)
    groups, events = 20, 25
    payloads = [{"group": group, "number": number} for number in range(events) for group in range(groups)]
    relay.publish("order_shipped", payloads, group=lambda order: f"group {order['group']}")
    with Queue(seed=7) as queue:
        variables = {"AWS_ENDPOINT_URL_SQS": queue.url, "TIDEGATE_CONCURRENCY": "32", "TIDEGATE_LEASE_TIMEOUT": "5s", "TIDEGATE_HANDLER_TIMEOUT": "4s"}
        for enough in (100, 200):
            while len(queue.ids) < enough:
                killed = subprocess.Popen([relay.program, "drain", "--budget", "20s"], env={**relay.environment, **variables},
                                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                # One that finds the queue's circuit open ends by itself.
                while len(queue.ids) < enough and killed.poll() is None:
                    time.sleep(0.01)
                killed.send_signal(signal.SIGKILL)
                killed.wait()
        relay.drained(**variables)
    assert len(queue.ids) == len(payloads), len(queue.ids)
    for group in queue.groups.values():
        assert [order["number"] for order in group] == list(range(events)), group
    assert {status for status, _ in relay.ended()} == {"COMPLETED"}, relay.ended()


def moto(relay):
    """moto's SQS and EventBridge take our requests: what they check of a signature's form, of a message and of an entry."""
    folder = tools.install(MOTO, dependencies=True)
    port = local.free_port()
    variables = {**local.environment(), **AWS, "PYTHONPATH": str(folder)}
    with Receiver(([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", port], variables), port) as server:
        sys.path[:0] = [str(folder)]
        import boto3
        os.environ.update(AWS)
        sqs = boto3.client("sqs", region_name="eu-central-1", endpoint_url=server.url)
        fifo = sqs.create_queue(QueueName="warehouse.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
        plain = sqs.create_queue(QueueName="copies")["QueueUrl"]
        events = boto3.client("events", region_name="eu-central-1", endpoint_url=server.url)
        bus = events.create_event_bus(Name="shop")["EventBusArn"]
        events.put_rule(Name="all", EventBusName="shop", EventPattern='{"source": ["shop"]}')
        events.put_targets(Rule="all", EventBusName="shop", Targets=[{"Id": "1", "Arn": "arn:aws:sqs:eu-central-1:123456789012:copies"}])
        relay.declare(WAREHOUSE.replace('target = "warehouse"', 'targets = ["warehouse", "bus"]').replace(
            "[kinds]", f'[targets.bus]\neventbridge = "{bus}"\nsource = "shop"\n[kinds]'))
        relay.publish("order_shipped", [{"number": number, "odd": "a\ufffeb"} for number in range(12)], group=lambda order: f"g{order['number'] % 2}")
        relay.publish("order_shipped", ["x" * 1_048_570])
        relay.drained(AWS_ENDPOINT_URL_SQS=server.url, AWS_ENDPOINT_URL_EVENTBRIDGE=server.url)
        assert relay.ended() == {("COMPLETED", 1): 12, ("COMPLETED_WITH_ERRORS", 1): 1}, relay.ended()
        code = relay.database.holds("SELECT errors->0->>'code' FROM tidegate.event_log WHERE status <> 'COMPLETED'")
        assert code == "too_large", code
        found = []
        while messages := sqs.receive_message(QueueUrl=fifo, MaxNumberOfMessages=10, MessageAttributeNames=["All"], AttributeNames=["All"]).get("Messages"):
            for message in messages:
                found.append((message["Attributes"]["MessageGroupId"], json.loads(message["Body"])["number"]))
                assert message["MessageAttributes"]["kind"]["StringValue"] == "order_shipped"
                sqs.delete_message(QueueUrl=fifo, ReceiptHandle=message["ReceiptHandle"])
        for group in ("g0", "g1"):
            numbers = [number for of, number in found if of == group]
            assert numbers == sorted(numbers) and len(numbers) == 6, found
        copies = int(sqs.get_queue_attributes(QueueUrl=plain, AttributeNames=["ApproximateNumberOfMessages"])["Attributes"]["ApproximateNumberOfMessages"])
        assert copies >= 12, copies


def function(relay):
    """In Lambda's runtime the program is a function: it answers an invocation, and has handed the event to its target."""
    relay.declare(ship())
    relay.publish("order_placed", orders(1))
    with Invoke({"ship": lambda event: None}) as aws, Runtime() as runtime:
        variables = {"AWS_LAMBDA_RUNTIME_API": runtime.url.removeprefix("http://"), "AWS_LAMBDA_FUNCTION_NAME": "relay",
                     "AWS_LAMBDA_FUNCTION_VERSION": "1", "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "256", "AWS_ENDPOINT_URL_LAMBDA": aws.url}
        process = subprocess.Popen([relay.program], env={**relay.environment, **variables}, stdout=subprocess.DEVNULL)
        try:
            path, body = runtime.answers.get(timeout=LIMIT_S)
        finally:
            process.kill()
            process.wait()
    assert path.endswith("/response") and json.loads(body)["completed"] == 1, (path, body)
    assert relay.ended() == {("COMPLETED", 1): 1} and aws.sizes("ship") == [1], (relay.ended(), aws.calls)


def begun(relay, part, database, owner, files, **variables):
    """Runs the commands of a part of docs/guides/any-language.md in an empty folder with these files, and returns what they print. The
    database is a new one of a plain owner."""
    begun = time.monotonic()
    guide = (tools.PROJECT / "docs" / "guides" / "any-language.md").read_text()
    toml, commands = re.search(rf"### {part}\n.*?(?:```toml\n(.*?)```\n\n)?```sh\n(.*?)```", guide, re.DOTALL).groups()
    typed = [line for line in re.sub(r"\\\n *", "", commands).splitlines() if line and not line.startswith("export ")]
    assert len(typed) <= 5, typed
    relay.database.run(f"CREATE ROLE {owner} LOGIN")
    relay.database.run(f"CREATE DATABASE {database} OWNER {owner}")
    commands = re.sub("^pip .*\n", "", commands, flags=re.MULTILINE).replace("python ", f"{sys.executable} ")
    commands = commands.replace("postgres://owner@localhost/shop", relay.at(database, owner))
    listens = "while kill -0 $! && ! (: > /dev/tcp/127.0.0.1/9001) 2>/dev/null; do sleep 0.1; done"
    commands = commands.replace(" &\n", f" &\ntrap 'kill $!' EXIT; {listens}\n").replace("9001", str(local.free_port()))
    with tempfile.TemporaryDirectory() as folder:
        for name, text in {**files, "tidegate.toml": toml or ""}.items():
            (Path(folder) / name).write_text(text)
        path = os.pathsep.join([*map(str, variables.pop("path")), os.environ["PATH"]])
        done = subprocess.run(["bash", "-e", "-c", commands], cwd=folder, env={**local.environment(), "PATH": path, **variables}, capture_output=True, text=True)
    assert done.returncode == 0, f"{commands}\n{done.stdout}{done.stderr}"
    print(f"  in {time.monotonic() - begun:.1f} s", flush=True)
    return done.stdout


def newcomer(relay):
    """From an empty folder to a Python handler that has received an event, with the program from its wheel."""
    with tempfile.TemporaryDirectory() as folder:
        features = ["--features", "vendored-openssl"] if "vendored-openssl" in local.cargo_flags() else []
        release.wheel("--profile", "dev", "--compatibility", "linux", *features, into=folder, stdout=subprocess.DEVNULL)
        [wheel] = Path(folder).glob("tidegate_relay-*.whl")
        local.ran([tools.python_with_pip("the wheel"), "-m", "pip", "install", "--quiet", "--no-index", "--root-user-action=ignore", "--target", folder, wheel])
        files = {name: (EXAMPLES / name).read_text() for name in ("invoke.py", "powertools_handler.py")}
        said = begun(relay, "With one program", "newcomer", "newcomer", files, path=[Path(folder) / "bin"], PYTHONPATH=str(_packages()))
    assert re.findall("ship ([0-9]) with the key tidegate", said) == ["7"], said


def one_file(relay):
    """From an empty folder to a Python worker that has handled an event, with one SQL file. Programs go on with its queue, and it with theirs."""
    printed = relay.run("migrate", "--print", DATABASE_URL="")
    files = {"tidegate.sql": printed, "worker.py": (EXAMPLES.parent / "pull" / "worker.py").read_text()}
    said = begun(relay, "With one SQL file", "one_file", "plain", files, path=[Path(PSQL).parent], PYTHONPATH=str(tools.install(PSYCOPG, dependencies=True)))
    assert "order_placed | COMPLETED" in said and '{"items": 1}' in said, said
    url = relay.at("one_file", "plain")
    assert relay.run("migrate", "--print", DATABASE_URL=url) == ""
    assert json.loads(relay.run("migrate", "--json", DATABASE_URL=url))["applied"] == []
    relay.declare(ship())
    assert relay.run("migrate", "--print") == "", "a queue that a program has made lacks nothing"
    again = psql(url, printed)
    assert again.returncode == 3 and "queue_migrations_pkey" in again.stderr, again
    old = psql(relay.at("postgres"), printed.replace("150000", "990000"))
    assert old.returncode == 3 and "is too old: upgrade to 15 or newer" in old.stderr, old
    # A queue of an older version, in another schema.
    relay.database.run("CREATE DATABASE older OWNER plain")
    older, named = relay.at("older", "plain"), relay.run("migrate", "--print", "--schema", "acme", "--roles", DATABASE_URL="")
    done = psql(older, named.partition("INSERT INTO acme.queue_migrations VALUES (10,")[0] + "COMMIT;")
    assert done.returncode == 0, done.stderr
    # An administrator upgrades it, and all of it stays the owner's.
    done = psql(relay.at("older"), relay.run("migrate", "--print", "--schema", "acme", DATABASE_URL=older))
    assert done.returncode == 0, done.stderr
    owners = local.Database(older).run("SELECT DISTINCT proowner::regrole::text FROM pg_proc WHERE pronamespace = 'acme'::regnamespace")
    assert owners == [["plain"]], owners
    assert relay.run("migrate", "--print", "--schema", "acme", DATABASE_URL=older) == ""
    roles = relay.run("migrate", "--print", "--schema", "acme", "--roles", DATABASE_URL=older)
    done = psql(relay.at("older"), roles)
    assert done.returncode == 0, done.stderr
    assert relay.run("migrate", "--print", "--schema", "acme", "--roles", DATABASE_URL=older) == ""
    for place in ({"DATABASE_URL": url}, {"DATABASE_URL": older, "TIDEGATE_SCHEMA": "acme"}):
        checks = json.loads(subprocess.run([relay.program, "doctor", "--json"], env={**relay.environment, **place}, capture_output=True).stdout)["checks"]
        [drift] = [check for check in checks if check["name"] == "schema drift"]
        assert drift["state"] == "ok", drift


def only_polled(relay):
    """A queue that no drain ever sees keeps its promises: attempts, lapsed leases, deadlines, retention and the log's days."""
    relay.database.run("CREATE DATABASE only_polled OWNER plain")
    url = relay.at("only_polled", "plain")
    assert psql(url, relay.run("migrate", "--print", DATABASE_URL="")).returncode == 0
    queue = local.Database(url)
    queue.run("SELECT tidegate.register_kind('slow', '{\"max_attempts\": 3}'), tidegate.register_kind('late'), tidegate.register_kind('brief')")
    refused = psql(url, "SELECT tidegate.register_kind('No Kind')")
    assert "kind: must have 1 to 100 characters of a-z" in refused.stderr, refused
    queue.run("SELECT tidegate.set_retention('brief', '0', '0', 'for a test')")
    queue.run("SELECT tidegate.publish('slow', '1'), tidegate.publish('late', '2', expires_at => now() + interval '1 s'), tidegate.publish('brief', '3')")
    # A program's function that fails is passed over.
    queue.run("CREATE FUNCTION broken(timestamptz, integer, boolean) RETURNS jsonb LANGUAGE sql AS 'SELECT (1 / 0)::text::jsonb'")
    queue.run("SELECT tidegate.declare_retention('public.broken', '1 day')")

    def polled(kind, lease):
        rows = wait_for(lambda: queue.run(f"SELECT id, token, attempt FROM tidegate.poll('{{{kind}}}', lease => '{lease}')"))
        return rows[0]

    assert "poll" in queue.holds("SELECT tidegate.why(min(id)) FROM tidegate.event_queue WHERE kind = 'slow'")
    assert polled("slow", "1 s")[2] == 1
    # Its worker is gone.
    [id, token, attempt] = polled("slow", "1 min")
    assert attempt == 2, attempt
    queue.run(f"SELECT tidegate.retry({id}, '{token}', '{{\"code\": \"down\"}}', '1 s')")
    [id, token, attempt] = polled("slow", "1 s")
    assert attempt == 3, attempt
    [brief, its_token, _] = polled("brief", "1 min")
    queue.run(f"SELECT tidegate.finalize({brief}, '{its_token}')")

    def cleaned():
        said = queue.holds("SELECT tidegate.cleanup()")
        said = json.loads(said) if isinstance(said, str) else said
        passed_over = [one["passed_over"] for one in said["did"] if "passed_over" in one]
        assert passed_over == ["division by zero"] or not said["finished"], said
        ends = {tuple(row) for row in queue.run("SELECT kind, status, errors->-1->>'code' FROM tidegate.event_log")}
        return said["finished"] and ends == {("slow", "FAILED", "abandoned"), ("late", "FAILED", "expired")}

    assert queue.holds("SELECT count(*) FROM tidegate.missing_log_days()") > 0
    wait_for(cleaned)
    assert queue.holds("SELECT count(*) FROM tidegate.missing_log_days()") == 0
    assert queue.holds("SELECT count(*) FROM tidegate.event_log_default") == 0


def wait_for(happens):
    deadline = time.monotonic() + LIMIT_S
    while not (found := happens()):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return found


def psql(url, text):
    return subprocess.run([PSQL, "--no-psqlrc", "-qv", "ON_ERROR_STOP=1", "-f", "-", url], input=text, capture_output=True, text=True, timeout=LIMIT_S)


def checked(relay):
    """The file of the examples has no fault, and says which permissions it needs."""
    said = relay.run("check", str(EXAMPLES / "tidegate.toml"), DATABASE_URL="")
    assert re.search("targets: 4, kinds: 4", said), said
    policy = json.loads(relay.run("permissions", str(EXAMPLES / "tidegate.toml"), DATABASE_URL=""))
    actions = {statement["Action"]: statement["Sid"].strip("0123456789") for statement in policy["Statement"]}
    looks = ["lambda:GetFunctionConfiguration", "lambda:GetFunctionConcurrency", "sqs:GetQueueAttributes", "events:DescribeEventBus"]
    calls = ["lambda:InvokeFunction", "sqs:SendMessage", "events:PutEvents", "secretsmanager:GetSecretValue"]
    assert actions == {**dict.fromkeys(calls, "Calls"), **dict.fromkeys(looks, "OptionalForDoctor")}, policy
    wrong = subprocess.run([relay.program, "check", "nowhere.toml"], env=relay.environment, capture_output=True, text=True)
    assert wrong.returncode == 2 and wrong.stderr.startswith("tidegate-relay: <FILE>: nowhere.toml"), wrong


def examined(relay):
    """The doctor asks each target whether it can be called, and sends no event. A look that it may not take is no fault."""
    def error(status, code):
        return status, {"x-amzn-errortype": code}, b"{}"

    def told(**fields):
        return 200, {}, json.dumps(fields).encode()

    well = {"DryRun": (204, {}, b""), "configuration": told(Timeout=50), "concurrency": told(ReservedConcurrentExecutions=5),
            "AmazonSQS.GetQueueAttributes": (200, {}, b"{}"),
            "AWSEvents.DescribeEventBus": (200, {}, b"{}")}
    denied = error(403, "AccessDeniedException")
    cases = [
        ({}, ""),
        ({name: denied for name in well if name != "DryRun"}, ""),
        ({"DryRun": denied}, "ship: credentials: answered 403: AccessDeniedException"),
        ({"DryRun": error(404, "ResourceNotFoundException")}, "ship: ResourceNotFoundException: answered 404: ResourceNotFoundException"),
        ({"concurrency": told()}, ""),
        ({"concurrency": told(ReservedConcurrentExecutions=4)},
         "ship: concurrency: the function's reserved concurrency must be at least 5, the target's limit in calls, got 4"),
        ({"configuration": told(Timeout=51)}, "ship: timeout: the function's time limit must be at most the target's, 50s, got 51s"),
        ({"AmazonSQS.GetQueueAttributes": error(400, "com.amazonaws.sqs#QueueDoesNotExist")},
         "warehouse: QueueDoesNotExist: answered 400: QueueDoesNotExist"),
        ({"AWSEvents.DescribeEventBus": error(400, "ResourceNotFoundException")}, "bus: ResourceNotFoundException: answered 400: ResourceNotFoundException"),
        ({"AWSEvents.DescribeEventBus": error(400, "ExpiredTokenException")}, "bus: credentials: answered 400: ExpiredTokenException"),
    ]
    targets, kinds = WAREHOUSE.replace('target = "warehouse"', 'targets = ["warehouse", "bus"]').split("[kinds]")
    bus = '[targets.bus]\neventbridge = "arn:aws:events:eu-central-1:123456789012:event-bus/shop"'
    relay.declare(targets + bus + ship("limit = 50") + kinds)
    relay.publish("order_placed", orders(1))
    for answers, fault in cases:
        with Looked({**well, **answers}) as aws:
            said = relay.run("doctor", "--json", code=3, AWS_ENDPOINT_URL=aws.url)
        found = [check["finding"] for check in json.loads(said)["checks"] if check["name"] == "targets"]
        assert found == [fault] * bool(fault), (answers, found)
        assert set(aws.asked) <= set(well), aws.asked
    # Nobody listens there any more.
    said = relay.run("doctor", "--json", code=3, AWS_ENDPOINT_URL=aws.url)
    found = [check["finding"] for check in json.loads(said)["checks"] if check["name"] == "targets"]
    assert len(found) == 3 and all("unreachable" in one for one in found), found


ALL = [checked, newcomer, one_file, only_polled, conformance, examined, powertools, all_raise, fifo, record, broken_deployment, poison, hung, cut, node, bad_neighbours, webhooks, frameworks,
       function, redirects, fifo_queue, moto, *recipes.ALL, *cron.ALL]


def main():
    sys.path[:0] = [str(_packages()), str(EXAMPLES)]
    words = sys.argv[1:]
    program = Path(words[1]).resolve() if words[:1] == ["--program"] else None
    wanted = words[2 if program else 0:] or [one.__name__ for one in ALL]
    with ExitStack() as started:
        relay = Relay(started, program)
        relay.run("migrate")
        failed = 0
        for one in ALL:
            if one.__name__ not in wanted:
                continue
            print(f"{one.__name__}: {one.__doc__.splitlines()[0]}", flush=True)
            try:
                one(relay)
            except AssertionError as error:
                failed += 1
                import traceback
                traceback.print_exc()
                print(f"  FAILED: {error}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    local.run_script(main)
