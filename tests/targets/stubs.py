"""Stand-ins for AWS on the loopback address: Lambda's Invoke, which runs a handler or misbehaves, and SQS, which loses some."""

import gzip
import json
import queue
import random
import re
import socket
import threading
import time
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote


class Served(ThreadingHTTPServer):
    """Answers each request with what `answer(path, headers, body)` returns: status, headers, body. None cuts the connection."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Answering)
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    def handle_error(self, *_):
        """A caller that was killed is no fault."""


class _Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        answer = self.server.answer(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
        if answer is None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        status, headers, body = answer
        try:
            self.send_response(status)
            for name, value in {**headers, "content-length": len(body)}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            pass  # the caller has given up

    do_GET = do_HEAD = do_POST

    def log_message(self, *_):
        pass


class Invoke(Served):
    """https://docs.aws.amazon.com/lambda/latest/api/API_Invoke.html. `functions`: what each function, by its name, does with
    an event. It returns the answer, raises like a handler, or returns `Raw` for an answer of the service itself."""

    def __init__(self, functions):
        self.functions = functions
        self.calls = []
        self.lock = threading.Lock()
        super().__init__()

    def answer(self, path, headers, body):
        arn = unquote(path.split("/")[3])
        event = json.loads(body)
        assert headers["authorization"].startswith("AWS4-HMAC-SHA256"), headers
        assert headers["x-amz-invocation-type"] == "RequestResponse", headers
        name = arn.split(":")[6]
        with self.lock:
            self.calls.append((name, [record["messageId"] for record in event["Records"]]))
        try:
            said = self.functions[name](event)
        except Exception as error:
            document = {"errorMessage": str(error), "errorType": type(error).__name__, "stackTrace": traceback.format_exc().splitlines()}
            return 200, {"x-amz-function-error": "Unhandled"}, json.dumps(document).encode()
        return said.answer if isinstance(said, Raw) else (200, {}, json.dumps(said).encode())

    def sizes(self, name):
        return [len(ids) for called, ids in self.calls if called == name]


class Durable(Served):
    """Invoke of a durable function, as botocore's model of Lambda describes it: a name with the same payload starts one execution. `started`
    has the payload of each. `packages` is where botocore is."""

    def __init__(self, packages):
        [model] = packages.glob("botocore/data/lambda/2015-03-31/service-2.json.gz")
        shapes = json.loads(gzip.decompress(model.read_bytes()))["shapes"]
        self.header = shapes["InvocationRequest"]["members"]["DurableExecutionName"]["locationName"].lower()
        self.told = shapes["InvocationResponse"]["members"]["DurableExecutionArn"]["locationName"]
        self.form, self.refusal = shapes["DurableExecutionName"], "DurableExecutionAlreadyStartedException"
        self.status = shapes[self.refusal]["error"]["httpStatusCode"]
        self.asked, self.names = [], {}
        super().__init__()

    @property
    def started(self):
        return [json.loads(payload) for payload in self.names.values()]

    def answer(self, path, headers, body):
        assert headers["x-amz-invocation-type"] == "Event", headers
        name = headers.get(self.header)
        self.asked.append(name)
        if name and not (re.fullmatch(self.form["pattern"], name) and len(name) <= self.form["max"]):
            return 400, {"x-amzn-errortype": "InvalidParameterValueException"}, b"{}"
        if self.names.setdefault(name or f"made-{len(self.asked)}", body) != body:
            return self.status, {"x-amzn-errortype": self.refusal}, b"{}"
        return 202, {self.told: f"{unquote(path.split('/')[3])}/durable-execution/{name}/1"}, b""


class Looked(Served):
    """What a mere look finds: `answers` has the answer to each request, by its `X-Amz-Target`, its type of invocation, or its method."""

    def __init__(self, answers):
        self.answers = answers
        self.asked = []
        super().__init__()

    def answer(self, path, headers, body):
        assert headers["authorization"].startswith("AWS4-HMAC-SHA256"), headers
        name = headers.get("x-amz-target") or headers.get("x-amz-invocation-type") or path.rsplit("/")[-1]
        self.asked.append(name)
        return self.answers[name]


class Runtime(Served):
    """Lambda's runtime interface with one invocation, a drain. `answers` receives the path and the body of its answer."""

    def __init__(self):
        self.answers, self.given = queue.Queue(), False
        super().__init__()

    def answer(self, path, headers, body):
        if not path.endswith("/invocation/next"):
            self.answers.put((path, body))
            return 202, {}, b"{}"
        if self.given:
            threading.Event().wait()
        self.given = True
        deadline = int((time.time() + 60) * 1000)
        return 200, {"lambda-runtime-aws-request-id": "1", "lambda-runtime-deadline-ms": deadline, "lambda-runtime-invoked-function-arn": "arn"}, b'{"action": "drain"}'


class Raw:
    def __init__(self, status=None, headers=None, body=b""):
        self.answer = None if status is None else (status, headers or {}, body)


class Queue(Served):
    """SendMessageBatch of a FIFO queue: some entries fail, some are left out of the answer, and some answers are lost."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.groups, self.ids = {}, set()
        self.lock = threading.Lock()
        super().__init__()

    def answer(self, path, headers, body):
        assert headers["x-amz-target"] == "AmazonSQS.SendMessageBatch" and headers["content-type"] == "application/x-amz-json-1.0", headers
        entries = json.loads(body)["Entries"]
        assert 1 <= len(entries) <= 10, len(entries)
        sent, failed = [], []
        with self.lock:
            for entry in entries:
                fate = self.chance.random()
                if fate < 0.05:
                    failed.append({"Id": entry["Id"], "SenderFault": False, "Code": "InternalError"})
                elif fate >= 0.1:
                    self.take(entry)
                    sent.append({"Id": entry["Id"], "MessageId": f"m-{entry['Id']}", "MD5OfMessageBody": ""})
            lost = self.chance.random() < 0.05
        return None if lost else (200, {}, json.dumps({"Successful": sent, "Failed": failed}).encode())

    def take(self, entry):
        if entry["MessageDeduplicationId"] not in self.ids:
            self.ids.add(entry["MessageDeduplicationId"])
            self.groups.setdefault(entry["MessageGroupId"], []).append(json.loads(entry["MessageBody"]))
