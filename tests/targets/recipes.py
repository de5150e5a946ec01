"""Runs the recipes of docs/guides/recipes.md. The code is the page's own: each test takes the blocks of its section, and does with them
what a reader would. Only names and places are replaced: ids, ports, the path of the program."""

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import local
import tools
from stubs import Durable, Invoke, Raw, Served

PAGE = tools.PROJECT / "docs" / "guides" / "recipes.md"
EXAMPLES = tools.PROJECT / "examples" / "any-language"
PSYCOPG, BOTO3, MOTO = "psycopg[binary]==3.3.9", "boto3==1.44.8", "moto[events,server,sqs]==5.2.1"
# How long a report blocks a place of the drain, unless an invoice comes.
BLOCKED_S = 10
RUN = "import json, sys, handler; print(json.dumps(handler.handler(json.load(sys.stdin), None)))"


class Recipe:
    """The blocks of a section, and a database of its own whose queue has these kinds."""

    def __init__(self, relay, heading, *kinds):
        text = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.DOTALL | re.MULTILINE)[1]
        self.blocks = re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL)
        self.relay = relay
        name = re.sub(r"\W", "_", heading.lower())
        relay.database.run(f"CREATE DATABASE {name}")
        self.url = f"{relay.environment['DATABASE_URL'].rpartition('/')[0]}/{name}"
        self.connection = self.connected()
        if kinds:
            self.declare("[kinds]\n" + "".join(f'{kind} = "pull"\n' for kind in kinds))

    def connected(self, **options):
        sys.path[:0] = [str(tools.install(PSYCOPG, dependencies=True))]
        import psycopg
        return psycopg.connect(self.url, autocommit=True, row_factory=psycopg.rows.dict_row, **options)

    def of(self, language):
        return [text for found, text in self.blocks if found == language]

    def declare(self, targets):
        file = self.relay.room / "recipe.toml"
        file.write_text(targets)
        self.run("migrate", "--targets", str(file))

    def run(self, *words, **variables):
        return self.relay.run(*words, DATABASE_URL=self.url, **variables)

    def named(self):
        """What the blocks in Python define."""
        from psycopg.types.json import Jsonb
        names = {"Jsonb": Jsonb}
        exec("".join(self.of("python")), names)
        return names

    def sql(self, text):
        """Runs statements, and returns the rows of the last one that has any."""
        cursor, rows = self.connection.execute(text), []
        while True:
            rows = cursor.fetchall() if cursor.description else rows
            if not cursor.nextset():
                return rows

    def poll(self, *kinds, later="0"):
        """Leases the next event, as if so much time had passed."""
        call = "SELECT * FROM tidegate.poll(%s, now => clock_timestamp() + %s::interval)"
        return self.connection.execute(call, [list(kinds), later]).fetchall()

    def end(self, event):
        self.connection.execute("SELECT tidegate.finalize(%s, %s)", [event["id"], event["token"]])

    def ended(self):
        return self.sql("SELECT kind, status, payload, correlation_id, group_key FROM tidegate.event_log ORDER BY id")


def approval(relay):
    """An approval takes the place of the time-out. Without one, the time-out decides, and a later approval changes nothing."""
    recipe = Recipe(relay, "Wait for a person's approval", "expense_decided", "expense_paid")
    table, ask, approve = recipe.of("sql")
    decide = recipe.named()["decide"]

    def handled(*kinds, later="0"):
        """Handles all that is ready at that time. Returns the kinds."""
        done = []
        while events := recipe.poll(*kinds, later=later):
            done.append(events[0]["kind"])
            if events[0]["kind"] == "expense_decided":
                decide(recipe.connection, *events)
            else:
                recipe.end(*events)
        return done

    recipe.sql(table)
    for number in "789":
        recipe.sql(ask.replace("7", number))
        recipe.sql(f"SELECT tidegate.publish('expense_paid', NULL, group_key => 'expense-{number}')")
    assert handled("expense_decided", "expense_paid", later="2 days") == [], "nothing is decided yet"
    # In time: it is due at once, and so is what waits in its group.
    assert recipe.sql(approve) == [{"created": False, "replaced": True}]
    assert handled("expense_decided", "expense_paid") == ["expense_decided", "expense_paid"]
    assert recipe.ended()[0]["payload"]["decision"] == "approved" and recipe.ended()[0]["correlation_id"] == "expense-7", recipe.ended()
    # While the time-out is handled, and after it.
    late = approve.replace("7", "8")
    [event] = recipe.poll("expense_decided", later="3 days 1 minute")
    assert recipe.sql(late) == [{"created": False, "replaced": False}]
    decide(recipe.connection, event)
    assert recipe.sql(late) == [{"created": True, "replaced": False}]
    assert sorted(handled("expense_decided", "expense_paid", later="4 days")) == ["expense_decided"] * 2 + ["expense_paid"] * 2
    decided = {row["id"]: row["decision"] for row in recipe.sql("SELECT * FROM expense")}
    assert decided == {7: "approved", 8: "timed_out", 9: "timed_out"}, decided


class Dying:
    """A connection of a worker that dies once, before this statement."""

    def __init__(self, connection, word):
        self.connection, self.word = connection, word

    def execute(self, sql, *values):
        if self.word in sql:
            self.word = "\0"
            raise ConnectionError("the worker died")
        return self.connection.execute(sql, *values)

    def transaction(self):
        return self.connection.transaction()


def fan_out(relay):
    """Of forty pages, one of which kills its worker, the last one publishes what follows, once."""
    recipe = Recipe(relay, "Fan out, and wait for all", "page_scanned", "document_read")
    table, start = recipe.of("sql")
    read_page = recipe.named()["read_page"]
    recipe.sql(table)
    assert recipe.sql(start) == [{"count": 40}]
    [event] = recipe.poll("page_scanned")
    try:
        read_page(Dying(recipe.connection, "finalize"), event)
        raise AssertionError("the worker lives")
    except ConnectionError:
        pass
    first = recipe.sql("SELECT left_over FROM document")
    assert first == [{"left_over": 40}], f"a page is counted whose event has not ended: {first}"

    def work():
        with recipe.connected() as connection:
            while events := connection.execute("SELECT * FROM tidegate.poll(ARRAY['page_scanned'])").fetchall():
                assert not connection.execute("SELECT 1 FROM tidegate.event_queue WHERE kind = 'document_read'").fetchone(), "too early"
                read_page(connection, *events)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert recipe.sql("SELECT left_over FROM document") == [{"left_over": 1}], "the page of the dead worker is left"
    read_page(recipe.connection, *recipe.poll("page_scanned", later="2 minutes"))
    assert len(recipe.ended()) == 40 and {row["status"] for row in recipe.ended()} == {"COMPLETED"}, recipe.ended()
    follow = recipe.sql("SELECT kind, payload FROM tidegate.event_queue")
    assert follow == [{"kind": "document_read", "payload": {"document": 7}}], follow


def durable(relay):
    """An event starts one execution, though the answer about the first attempt is lost. A replay starts another."""
    recipe = Recipe(relay, "Start a durable function")
    folder = relay.room / "durable"
    folder.mkdir()
    (folder / "handler.py").write_text("".join(recipe.of("python")))
    recipe.declare("""
        [targets.start]
        lambda = "arn:aws:lambda:eu-central-1:123456789012:function:start:live"
        [kinds]
        order_placed = { target = "start", attempts = 3, backoff = "1ms", backoff_max = "1ms" }""")
    packages = tools.install(BOTO3, dependencies=True)
    with Durable(packages) as lambdas:
        variables = {**relay.environment, "PYTHONPATH": f"{packages}{os.pathsep}{folder}", "AWS_ENDPOINT_URL_LAMBDA": lambdas.url,
                     "AWS_DEFAULT_REGION": "eu-central-1", "DURABLE_FUNCTION": "arn:aws:lambda:eu-central-1:123456789012:function:fulfil:1"}

        def start(event):
            done = subprocess.run([sys.executable, "-c", RUN], input=json.dumps(event), env=variables, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            return Raw() if len(lambdas.asked) == 1 else json.loads(done.stdout)

        with Invoke({"start": start}) as aws:
            recipe.run("publish", "order_placed", "--payload", '{"order_id": 7}')
            recipe.run("drain", AWS_ENDPOINT_URL_LAMBDA=aws.url)
            assert [row["status"] for row in recipe.ended()] == ["COMPLETED"], recipe.sql("SELECT status, errors FROM tidegate.events")
            assert len(lambdas.asked) == 2 and lambdas.started == [{"order_id": 7}], (lambdas.asked, lambdas.started)
            recipe.run("replay", "--kind", "order_placed", "--since", "1h", "--reason", "once more")
            recipe.run("drain", AWS_ENDPOINT_URL_LAMBDA=aws.url)
            assert lambdas.started == [{"order_id": 7}] * 2, lambdas.started


def debounce(relay):
    """Of many changes one is handled, half a minute after the last. Changes during the handling are handled after it, as one."""
    recipe = Recipe(relay, "Debounce", "page_changed")
    [change] = recipe.of("sql")
    due = []
    for _ in range(5):
        recipe.sql(change)
        [row] = recipe.sql("SELECT available_at FROM tidegate.events")
        due.append(row["available_at"])
    assert sorted(set(due)) == due, "each change puts it off"
    assert not recipe.poll("page_changed", later="20 s")
    [event] = recipe.poll("page_changed", later="31 s")
    assert not recipe.poll("page_changed", later="31 s"), "the changes are one event"
    # In turn, one is in hand and the other takes all changes.
    for _ in range(3):
        for _ in range(3):
            recipe.sql(change)
            assert not recipe.poll("page_changed", later="31 s"), "one is in hand already"
        recipe.end(event)
        [event] = recipe.poll("page_changed", later="31 s")
        assert event["payload"] == {"page": 5}, event
    recipe.end(event)
    assert not recipe.poll("page_changed", later="31 s") and len(recipe.ended()) == 4, recipe.ended()


def priorities(relay):
    """An invoice behind twenty slow reports is handled while they block their places. A loop takes the invoice first."""
    recipe = Recipe(relay, "Two priorities")
    recipe.declare(*recipe.of("toml"))
    called, waits = threading.Event(), []

    def office(event):
        if event["Records"][0]["messageAttributes"]["kind"]["stringValue"] == "invoice_wanted":
            called.set()
        else:
            waits.append(called.wait(BLOCKED_S))

    publish = "SELECT tidegate.publish('{1}', NULL) FROM generate_series(1, {0})"
    recipe.sql(publish.format(20, "report_wanted"))
    recipe.sql(publish.format(1, "invoice_wanted"))
    with Invoke({"office": office}) as aws:
        recipe.run("drain", AWS_ENDPOINT_URL_LAMBDA=aws.url)
    assert len(waits) == 20 and all(waits), waits
    recipe.declare('[kinds]\ninvoice_wanted = "pull"\nreport_wanted = "pull"\n')
    next_event = recipe.named()["next_event"]
    recipe.sql(publish.format(2, "report_wanted"))
    recipe.sql(publish.format(1, "invoice_wanted"))
    taken = [next_event(recipe.connection)["kind"] for _ in range(3)]
    assert taken == ["invoice_wanted", "report_wanted", "report_wanted"], taken
    assert next_event(recipe.connection) is None


def tenants(relay):
    """Each tenant's login reaches its own queue only, and each drain its own events."""
    recipe = Recipe(relay, "A deployment for each tenant")
    migrate, drain = recipe.of("sh")
    [login] = recipe.of("sql")
    import psycopg
    environment = {**relay.environment, "DATABASE_URL": recipe.url, "PATH": f"{relay.program.parent}{os.pathsep}{os.environ['PATH']}"}
    names = ["acme", "globex"]

    def sh(text, name, **variables):
        text = text.replace("acme", name).replace("tidegate-relay", str(relay.program))
        return local.output(["bash", "-e", "-c", text], cwd=relay.room, env={**environment, **variables}, stderr=subprocess.DEVNULL)

    def left(name):
        return recipe.sql(f"SELECT count(*) AS n FROM {name}.event_queue")[0]["n"]

    for name in names:
        function = f'[targets.ship]\nlambda = "arn:aws:lambda:eu-central-1:123456789012:function:{name}:live"\n'
        (relay.room / f"{name}.toml").write_text(f'{function}[kinds]\norder_placed = {{ target = "ship" }}\n')
        sh(migrate, name)
        recipe.sql(login.replace("acme", name))
    for name, other in [names, names[::-1]]:
        with recipe.connected(user=f"{name}_shop") as shop:
            shop.execute(f"SELECT {name}.publish('order_placed', NULL)")
            try:
                shop.execute(f"SELECT {other}.publish('order_placed', NULL)")
                raise AssertionError(f"{name} has published in the queue of {other}")
            except psycopg.errors.InsufficientPrivilege:
                pass
    assert [left(name) for name in names] == [1, 1]
    with Invoke(dict.fromkeys(names, lambda event: None)) as aws:
        sh(drain, "acme", AWS_ENDPOINT_URL_LAMBDA=aws.url)
        assert [left(name) for name in names] == [0, 1] and aws.sizes("acme") == [1], aws.calls
        sh(drain, "globex", AWS_ENDPOINT_URL_LAMBDA=aws.url)
        assert [left(name) for name in names] == [0, 0] and aws.sizes("globex") == [1], aws.calls


class Moto(local.Guarded):
    """moto's server, on a free port of the loopback address."""

    def __init__(self, environment):
        self.port = local.free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", self.port]
        environment = {**environment, "PYTHONPATH": str(tools.install(MOTO, dependencies=True))}
        super().__init__(["sh", "-c", 'exec "$@" 2>/dev/null', "-", *words], environment, output=subprocess.DEVNULL)

    def ready(self):
        self.wait_for(self.port)


def mapping(sqs, url, arn):
    """What an event source mapping hands to a function: all messages of the queue, with the names that the function sees."""
    records = []
    all_of = {"QueueUrl": url, "MaxNumberOfMessages": 10, "MessageAttributeNames": ["All"], "AttributeNames": ["All"]}
    while messages := sqs.receive_message(**all_of).get("Messages"):
        for message in messages:
            told = message.get("MessageAttributes", {})
            attributes = {name: {"stringValue": value["StringValue"], "dataType": value["DataType"]} for name, value in told.items()}
            records.append({"messageId": message["MessageId"], "receiptHandle": message["ReceiptHandle"], "body": message["Body"],
                            "attributes": message["Attributes"], "messageAttributes": attributes, "md5OfBody": message["MD5OfBody"],
                            "eventSource": "aws:sqs", "eventSourceARN": arn, "awsRegion": arn.split(":")[3]})
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    return {"Records": records}


def from_sqs(relay):
    """The same handler gets the same records, first from the queue to which a drain sends, then from the drain."""
    recipe = Recipe(relay, "Move from SQS with the handler as it is")
    first, second = recipe.of("toml")
    handler = __import__("powertools_handler").handler
    arn, seen = "arn:aws:sqs:eu-central-1:123456789012:orders", []

    def function(event):
        seen.extend(event["Records"])
        return handler(event, None)

    def publish():
        recipe.sql("""SELECT tidegate.publish('order_placed', '{"order_id": 1, "sku": "tea"}')""")

    with Moto(relay.environment) as server:
        sys.path[:0] = [str(tools.install(MOTO, dependencies=True))]
        import boto3
        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "eu-central-1"}
        sqs = boto3.client("sqs", endpoint_url=server.url, **keys)
        queue = sqs.create_queue(QueueName="orders")["QueueUrl"]
        recipe.declare(first)
        publish()
        recipe.run("drain", AWS_ENDPOINT_URL_SQS=server.url)
        assert not function(mapping(sqs, queue, arn))["batchItemFailures"] and len(seen) == 1, seen
    with Invoke({"ship": function}) as aws:
        recipe.declare(second)
        publish()
        recipe.run("drain", AWS_ENDPOINT_URL_LAMBDA=aws.url)
    assert [row["status"] for row in recipe.ended()] == ["COMPLETED"] * 2 and len(seen) == 2, seen
    before, after = seen
    for field in ("body", "eventSource", "eventSourceARN", "awsRegion", "md5OfBody"):
        assert before[field] == after[field], (field, before, after)
    assert before.keys() <= after.keys(), (before, after)
    assert before["messageAttributes"].keys() == after["messageAttributes"].keys(), (before, after)


ALL = [approval, fan_out, durable, debounce, priorities, tenants, from_sqs]
