"""What conformance.py checks, one function for each promise. `q` has the workers, by number, and what the database says."""

import json
import random
import time
from datetime import datetime, timedelta, timezone
from decimal import Decimal

KIND, EFFECT = KINDS = ["conformance", "conformance_effect"]
MARK = "conformance"
BIG = 2**53 + 1
NOBODY = "00000000-0000-4000-8000-000000000000"
ODD = 'quote " slash \\ tab \t line \n and \u2028 \u2029, \x7f é e\u0301 \U0001f600 \ufeff {},'
ANY = {ODD: [1, 1.5, True, None, ODD, {}, []]}
PAYLOADS = [None, "null", '"null"', '""', "0", "[1, [2]]", json.dumps(ANY), json.dumps(ANY, ensure_ascii=False), json.dumps("x" * (2**20 - 2)),
            json.dumps("é" * (2**19 - 1), ensure_ascii=False)]
NUMBERS = [str(BIG), f'{{"n": [-{BIG}]}}', "18446744073709551616", "12345678901234.567891", "0.1", "1e400"]
RESULTS = [ANY, [1, [2]], [], "a text", "x" * 10**6]


class Broken(Exception):
    """A promise is not kept."""


def same(wanted, got, what):
    if got != wanted:
        raise Broken(f"{what}: must be {str(wanted)[:300]}, got {str(got)[:300]}")


def near(wanted, got, what):
    """Whether the adapter's time is this one."""
    told = datetime.fromtimestamp(got / (1000 if got > 1e11 else 1), timezone.utc) if isinstance(got, (int, float)) else datetime.fromisoformat(got)
    if told.tzinfo is None or abs(wanted - told) > timedelta(milliseconds=1):
        raise Broken(f"{what}: must be {wanted}, got {got}")


def ids(found):
    """The ids of rows, or of an array of ids."""
    same(True, isinstance(found, list), f"{found!r} is an array")
    return [int(str(one["id"] if isinstance(one, dict) else one)) for one in found]


def one_holder(q):
    """No event is in the hands of two workers at once, and each ends once, though four poll at once and some attempts fail."""
    chosen, hands, ended, idle = random.Random(7), [[], [], [], []], [], 0
    wanted = [q.publish(group_key=f"group {n % 5}" if n % 3 else None) for n in range(24)]
    while len(ended) < len(wanted):
        free = [n for n in range(4) if not hands[n]]
        for n in free:
            q[n].send("poll", kinds=[KIND], most=4, lease="60 s")
        for n in free:
            hands[n] = q[n].answer()
        held = ids(sum(hands, []))
        same(sorted(set(held) - set(ended)), sorted(held), "the events in hand")
        idle = 0 if held else idle + 1
        same(True, idle < 50, f"something comes while {len(wanted) - len(ended)} events have not ended")
        for n in range(4):
            while hands[n] and chosen.random() < 0.8:
                event = hands[n].pop(0)
                if chosen.random() < 0.2:
                    [row] = q[n].ask("retry", event, delay="0 s")
                    hands[n] = [one for one in hands[n] if int(one["id"]) not in ids(row["left_too"])]
                else:
                    q[n].handle(event)
                    ended += ids([event])
    same(wanted, q.stored()[1], "the effects")
    groups = [[id for id in ended if (n := wanted.index(id)) % 3 and n % 5 == group] for group in range(5)]
    same([sorted(group) for group in groups], groups, "the ends of each group")


def committed(q):
    """A poll commits by itself: all see the lease before the work begins."""
    id = q.publish()
    same([id], ids(q[0].poll()), "the poll")
    same("PROCESSING", q.live("status", id), "what others see")


def order(q):
    """Events of a group come in their order, also after a retry, and nobody has a later one meanwhile."""
    group, other = [q.publish(group_key=ODD) for _ in range(3)], q.publish(group_key="other")
    first = q[0].take()
    same((group[0], ODD), (int(first["id"]), first["group_key"]), "the first event")
    same([other], ids(q[1].poll(10)), "what another worker gets meanwhile")
    q[0].ask("retry", first, delay="0 s")
    rows = q[1].poll(10)
    same(group, ids(rows), "what comes after the retry")
    q[1].refused("TG004", "finalize", rows[1])
    [row] = q[1].ask("retry", rows[0], delay="1 hour")
    same(group[1:], sorted(ids(row["left_too"])), "left_too of a retry")
    q[1].refused("TG001", "finalize", rows[1])
    same([], q[0].poll(10), "what comes while the first one waits")


def together(q):
    """An event ends in the transaction of its work: both are stored, or neither."""
    id = q.publish()
    event = q[0].take()
    for end in ("rollback", "commit"):
        q[0].ask("begin")
        q[0].effect(event)
        q[0].end(event, follow_ups=[{"kind": EFFECT, "payload": {"of": "0"}}])
        same(([], []), q.stored(id), f"what is stored before the {end}")
        q[0].ask(end)
    same(([("COMPLETED", 1)], [0, id]), q.stored(id), "what is stored after the commit")


def fenced(q):
    """A worker whose lease has run out is refused with TG001, and its transaction stores nothing."""
    id = q.publish()
    late = q[0].take(lease="1 s")
    [event] = q[1].poll_until([id])
    q[0].stores_nothing(late, "TG001")
    q[0].refused("TG001", "retry", late)
    q[0].refused("TG001", "extend", token=late["token"])
    same("lost", q[0].ask("settle", token=late["token"], outcomes=[{"id": late["id"]}])[0]["outcome"], "the outcome of settle")
    same(([], []), q.stored(id), "what the late worker has stored")
    q[1].handle(event)
    same(([("COMPLETED", 2)], [id]), q.stored(id), "what its successor has stored")


def refused(q):
    """A refusal arrives with its SQLSTATE, a commit that stores nothing is told as an error, and the worker goes on."""
    id = q.publish()
    q[0].refused("22023", "poll", kinds=["nobody's kind"])
    event = q[0].take()
    q[0].ask("begin")
    q[0].refused("TG001", "finalize", {"id": event["id"], "token": NOBODY})
    q[0].refused(None, "commit")
    q[0].handle(event)
    same(([("COMPLETED", 1)], [id]), q.stored(id), "what is stored")


def killed(q):
    """After a worker was killed in its transaction, its events come again when the lease is over, and their effects happen once."""
    wanted = [q.publish(), q.publish()]
    first = q[9].poll(2, lease="1 s")[0]
    q[9].ask("begin")
    q[9].effect(first)
    q[9].end(first)
    q.workers.pop(9).kill()
    same(([], []), q.stored(*wanted), "what is stored after the kill")
    for event in q[0].poll_until(wanted):
        same(2, int(event["attempt"]), "the attempt")
        q[0].handle(event)
    same(([("COMPLETED", 2)] * 2, wanted), q.stored(*wanted), "what is stored")


def cut(q):
    """If the connection breaks in a transaction, nothing of it is stored, whatever the driver does to connect again."""
    id = q.publish()
    event = q[9].take()
    q[9].ask("begin")
    q[9].effect(event)
    found = q.mine.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = %s", [q[9].name]).fetchall()
    same([(True,)], found, f"the session with the application_name {q[9].name!r} is ended")
    q[9].refused(None, "finalize", event)
    q[9].commit_in_vain()
    same(([], []), q.stored(id), "what is stored")
    q.workers.pop(9).kill()
    q[0].handle(event)
    same(([("COMPLETED", 1)], [id]), q.stored(id), "what another connection has stored")


def twice(q):
    """If the answer to an end was lost, the same call tells again how the event has ended, from any connection, and changes nothing."""
    id = q.publish()
    event = q[0].take()
    more = {"follow_ups": [{"kind": EFFECT, "payload": {"of": "0"}}]}
    q[0].handle(event, **more)
    q[0].end(event, **more)
    q[1].end(event, **more)
    same("COMPLETED", q[1].ask("retry", event)[0]["status"], "the status of retry")
    same("already", q[1].ask("settle", token=event["token"], outcomes=[{"id": event["id"]}])[0]["outcome"], "the outcome of settle")
    same(([("COMPLETED", 1)], [0, id]), q.stored(id), "what is stored")


def attempts(q):
    """An event that has failed as often as it may ends FAILED, with all its errors."""
    id = q.publish(max_attempts=2)
    for attempt, status in (1, "PENDING"), (2, "FAILED"):
        event = q[0].take()
        same((attempt, 2), (int(event["attempt"]), int(event["max_attempts"])), "attempt and max_attempts")
        [row] = q[0].ask("retry", event, delay="0 s", error={"code": f"code {attempt}", "message": ODD})
        same((status, attempt), (row["status"], int(row["attempts"])), "the answer of retry")
    [[status, errors]] = q.all("SELECT status, errors FROM tidegate.event_log WHERE id = %s", id)
    same(["FAILED", ("code 1", ODD), ("code 2", ODD)], [status, *[(one["code"], one["message"]) for one in errors[:2]]], "its end and errors")


def retries(q):
    """A retry waits for its delay, is charged unless the worker says otherwise, and keeps the event's idempotency key."""
    id, keys = q.publish(), set()
    for attempt, options in (1, {"delay": "0 s", "charged": False}), (1, {"delay": "0 s"}), (2, {"delay": "1 hour"}):
        event = q[0].take()
        keys.add(event["idempotency_key"])
        same(attempt, int(event["attempt"]), f"the attempt before the retry with {options}")
        [row] = q[0].ask("retry", event, **options)
    near(q.live("available_at", id), row["available_at"], "available_at")
    same((1, []), (len(keys), q[0].poll()), "the idempotency keys, and what comes before the hour is over")


def extended(q):
    """An extended lease outlasts its first term, and its worker learns what it still holds."""
    wanted = [q.publish(), q.publish()]
    first, second = q[0].poll(2, lease="2 s")
    [row] = q[0].ask("extend", token=first["token"], lease="60 s")
    same(wanted, sorted(ids(row["held"])), "held")
    near(q.live("lease_expires_at", wanted[0]), row["lease_expires_at"], "lease_expires_at")
    time.sleep(2.1)
    same([], q[1].poll(2), "what another worker gets after the first term")
    q[0].handle(first)
    same(wanted[1:], ids(q[0].ask("extend", token=first["token"])[0]["held"]), "held after an end")


def settled(q):
    """Each event of a settle has an outcome of its own, and one that is not named stays in hand."""
    wanted = [q.publish(max_attempts=1 if n == 5 else 3) for n in range(8)]
    rows = q[0].poll(8)
    same(wanted, ids(rows), "the poll")
    q.cancel(ids=[wanted[6]])
    outcomes = [("ended", {"result": [1]}), ("ended", {"verdict": "reject", "errors": [{"code": "no"}]}),
                ("retried", {"verdict": "retry", "after": 3600}), ("retried", {"verdict": "snooze", "after": 3600}),
                ("released", {"verdict": "release"}), ("failed", {"verdict": "retry"}), ("lost", {})]
    answer = q[0].ask("settle", token=rows[0]["token"], outcomes=[{"id": row["id"], **given} for row, [_, given] in zip(rows, outcomes)])
    same([(id, outcome) for id, [outcome, _] in zip(wanted, outcomes)], sorted(zip(ids(answer), [row["outcome"] for row in answer])), "the outcomes")
    same(["COMPLETED", "COMPLETED_WITH_ERRORS", "FAILED", "FAILED"], [status for status, _ in q.stored(*wanted)[0]], "the ends")
    same([wanted[7]], ids(q[0].ask("extend", token=rows[0]["token"])[0]["held"]), "what is in hand")


def cancelled(q):
    """When an operator has cancelled an event in hand, its worker learns of that, and stores nothing."""
    wanted = [q.publish(), q.publish()]
    first, second = q[0].poll(2)
    q.cancel(ids=wanted[:1])
    same(wanted[1:], ids(q[0].ask("extend", token=first["token"])[0]["held"]), "held")
    q[0].stores_nothing(first, "TG001")
    q[0].handle(second)
    same((["FAILED", "COMPLETED"], wanted[1:]), ([status for status, _ in q.stored(*wanted)[0]], q.stored()[1]), "what is stored")


def payloads(q, texts=PAYLOADS):
    """Payloads come as they were published: odd characters, no payload, arrays, 1 MiB."""
    wanted = [q.publish_text(text) for text in texts]
    for text, row in zip(texts, q[0].poll_until(wanted)):
        got = row["payload"] or "null"
        same(json.loads(text or "null", parse_float=Decimal), json.loads(got, parse_float=Decimal) if isinstance(got, str) else got, "a payload")
        q[0].handle(row)


def numbers(q):
    """Numbers in payloads come as they were published: those beyond 2^53, and those with more digits than a double has."""
    payloads(q, NUMBERS)


def numbered(q):
    """Ids are numbers of 64 bits, beyond 2^53 too."""
    told = q[0].refused("22023", "finalize", {"id": str(BIG), "token": NOBODY})
    same(True, str(BIG) in told, f"the message has the id {BIG}: {told}")
    # One of two is odd, and not in a double.
    wanted = [q.publish(), q.publish()]
    rows = q[0].poll(2)
    same(wanted, ids(rows), "the ids")
    for event in rows:
        q[0].handle(event)
    same(([("COMPLETED", 1)] * 2, wanted), q.stored(*wanted), "what is stored")


def times(q):
    """Times are moments, whatever the worker's time zone is."""
    id = q.publish(expires_at=datetime.now(timezone.utc) + timedelta(hours=9))
    event = q[0].take()
    for name in ("created_at", "expires_at", "lease_expires_at"):
        near(q.live(name, id), event[name], name)


def stored(q):
    """Results and errors are stored as the worker gave them."""
    errors = [{"code": ODD, "message": ODD, "details": ANY}, {"code": "second", "message": ""}]
    for given in [*[{"result": result} for result in RESULTS], {"errors": errors, "wanted": "COMPLETED_WITH_ERRORS"}]:
        id = q.publish()
        q[0].handle(q[0].take(), **given)
        [[result, told]] = q.all("SELECT result, errors FROM tidegate.event_log WHERE id = %s", id)
        same(given.get("result"), result, "the result")
        same(given.get("errors", []), [{name: value for name, value in one.items() if name in errors[0]} for one in told or []], "the errors")


CHECKS = [one_holder, committed, order, together, fenced, refused, killed, cut, twice, attempts, retries, extended, settled, cancelled,
          payloads, numbers, numbered, times, stored]
