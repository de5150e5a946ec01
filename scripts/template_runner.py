"""Executes the migration runner like Lambda, and replaces the parts of AWS that moto does not support.

Reads {code, event, answer} from standard input. Prints as its last line the answer to CloudFormation and the calls. The
function's answer is given. The stack's state is the event's `StackStatus`, or read from moto.
"""

import io
import json
import sys
import types

import boto3

given = json.load(sys.stdin)
told = {"calls": []}
real_client = boto3.client


class Function:
    """`boto3.client("lambda")` with the given answer."""

    @staticmethod
    def invoke(FunctionName, Payload):
        told["calls"].append({"FunctionName": FunctionName, "Payload": Payload.decode()})
        if "Error" in given["answer"]:
            raise RuntimeError(given["answer"]["Error"])
        return {**given["answer"], "Payload": io.BytesIO(json.dumps(given["answer"]["Payload"]).encode())}


class RollingBack:
    """`boto3.client("cloudformation")` in a state that moto never reaches."""

    @staticmethod
    def describe_stacks(StackName):
        return {"Stacks": [{"StackStatus": given["event"]["StackStatus"]}]}


def client(service, **options):
    if service == "lambda":
        return Function
    return RollingBack if "StackStatus" in given["event"] else real_client(service, **options)


def send(event, context, status, data, physical_id=None, no_echo=False, reason=None):
    """As in the module with that name, which Lambda provides for inline code."""
    told.update(Status=status, Reason=reason)


boto3.client = client
sys.modules["cfnresponse"] = types.SimpleNamespace(SUCCESS="SUCCESS", FAILED="FAILED", send=send)
inline = {}
exec(compile(given["code"], "index.py", "exec"), inline)
inline["handler"](given["event"], None)
print(json.dumps(told))
