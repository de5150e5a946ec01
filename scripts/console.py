#!/usr/bin/env python3
"""A stage of `make test-all`: tests the web console in a real browser, on a Postgres of its own.

It visits every page in light and dark, wide and narrow, and checks it with axe. It clicks every action, shows hostile content, and
tests keys, renewal and pages without JavaScript. Waits are for what must come, however slow the machine; nothing is asserted of
time. `--shots` also writes the screenshots of docs/guides/console.md."""

import json
import shutil
import sys
from contextlib import ExitStack
from urllib.parse import urlparse

import local
import stages
import tools
from tools import PROJECT

PLAYWRIGHT = "playwright==1.65.2"
AXE = "axe-core@4.14.1"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SEED = PROJECT / "crates/tidegate-console/tests/console/seed.sql"
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
PATIENCE_MS = 120_000
PAGES = sum(json.loads(SEED.with_name("pages.json").read_text()).values(), [])
# What decides on a page: heads of columns, which lie within the screen together with their first row. Of the overview, all columns.
DECIDES = {
    "/services": ("Service", "State", "Waiting", "Last error", "Next try"),
    "/events?status=FAILED": ("Id", "Kind", "Status", "Last error"),
    "/dead": ("Kind", "Status", "Error code", "Events", "Message"),
    "/": (),
}
FIRST_PX = 900
WHERE = """(names) => Array.from(document.querySelectorAll("#live > .scroll, .picks > .scroll, section > .scroll")).flatMap((room) =>
    Array.from(room.querySelectorAll("thead th")).filter((head) => !names.length || names.includes(head.textContent)).map((head) => {
        const at = head.getBoundingClientRect(), within = room.getBoundingClientRect();
        const row = room.querySelector("tbody tr").getBoundingClientRect();
        return {name: head.textContent, right: at.right - Math.min(within.right, innerWidth), bottom: row.bottom + scrollY, tall: row.height};
    }))"""
SHOTS = {"services": "/services", "overview": "/", "event": "/events/502", "dead-letters": "/dead", "replay": "/actions/replay?kind=invoice_sent&status=FAILED&since=1d"}
# Each says a page, the row of a table there (or none), what is unfolded, fields, what is said, and what is true afterwards. The
# integration tests send the same forms.
ACTIONS = [action for action in json.loads(SEED.with_name("actions.json").read_text()) if "at" in action]
# After everything else, because they change what is old.
LAST = [
    ("/retention", "Clean up", {"dry_run": True}, "cleanup: dry run, nothing was changed", "SELECT count(*) = 1 FROM tidegate.event_log WHERE id = 702"),
    ("/retention", "Clean up", {}, "rows deleted · 1", "SELECT count(*) = 0 FROM tidegate.event_log WHERE id = 702"),
]
CATCH = """window.refused = []; addEventListener("securitypolicyviolation", (event) =>
    window.refused.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`));"""
SERIOUS = """async () => (await axe.run(document, {runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]})).violations
    .filter((one) => ["serious", "critical"].includes(one.impact))
    .map((one) => `${one.id}: ${one.nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(" | ")}`)"""


def main():
    try:
        needs = Needs()
    except tools.Unavailable as missing:
        print(f"nothing was tried in a browser: {missing}")
        stages.note("chromium", "console")
        return 0
    programs = local.build("--bin", "tidegate")
    with ExitStack() as started:
        environment = {**local.environment(), **started.enter_context(local.postgres("--fast")), "TIDEGATE_ACTOR": "ada"}
        local.step("The schema", [programs / "tidegate", "migrate"], environment)
        database = local.Database(environment["DATABASE_URL"])
        database.run(SEED.read_text())
        server = started.enter_context(Server(programs / "tidegate", environment, "console", "--allow", "act", "--instance", "staging", "--colour", "amber"))
        print(f"\nThe console in {needs.browser}", flush=True)
        return try_it(needs, server, database, shots="--shots" in sys.argv)


class Needs:
    """What it takes beside the program. What the machine lacks is downloaded into .tools/."""

    def __init__(self):
        self.browser, self.libraries = browser()
        sys.path[:0] = [str(tools.install(PLAYWRIGHT, dependencies=True))]
        self.axe = (tools.npm_package(AXE) / "axe.min.js").read_text()


def browser():
    """The machine's Chromium, or Debian's package with its dependencies, unpacked into .tools/."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found:
        return found, {}
    root = tools.debian("chromium", "fonts-dejavu-core", all_needs=True)
    libraries = sorted({str(library.parent) for library in root.rglob("*.so*")})
    fonts = root / "fonts.conf"
    # Without the system's own rules the first font would be taken, which has serifs.
    rejected = "".join(f"<rejectfont><glob>*{name}*</glob></rejectfont>" for name in ("Serif", "TeXGyre"))
    fonts.write_text(f"<fontconfig><dir>{root}/usr/share/fonts</dir><dir>/usr/share/fonts</dir><cachedir>{root}/cache</cachedir>"
                     f"<selectfont>{rejected}</selectfont></fontconfig>")
    return str(root / "usr/lib/chromium/chromium"), {"LD_LIBRARY_PATH": ":".join(libraries), "FONTCONFIG_FILE": str(fonts)}


class Server(local.Served):
    """`tidegate console`, and the link that signs a person in."""

    def ready(self):
        super().ready()
        self.link = self.says(r"open (\S+)")


class Found:
    """What was found wrong; the run goes on, to tell of everything at once."""

    def __init__(self):
        self.wrong = []

    def check(self, is_well, what):
        if not is_well:
            self.wrong.append(what)
            print(f"  WRONG: {what}", flush=True)


class Visit:
    """A browser's context in which everything odd is noted."""

    def __init__(self, browser, server, found, state=None, scripts=True, **how):
        self.server, self.found, self.scripts = server, found, scripts
        self.context = browser.new_context(storage_state=state, java_script_enabled=scripts, **how)
        self.context.set_default_timeout(PATIENCE_MS)
        self.page = self.context.new_page()
        if scripts:
            self.page.add_init_script(CATCH)
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: found.check(False, f"{self.page.url}: {error}"))
        self.page.on("request", self._request)

    def _console(self, message):
        # That a page is answered 404 or 409 is noted as an error by the browser, and wanted here.
        is_wanted = "status of 40" in message.text
        self.found.check(message.type not in ("error", "warning") or is_wanted, f"{self.page.url}: console: {message.text}")

    def _request(self, request):
        ours = request.url.startswith((self.server.url, "data:"))
        self.found.check(ours, f"{self.page.url}: a request to {request.url}")

    def go(self, path):
        self.page.goto(self.server.url + path, wait_until="load")
        if self.scripts:
            refused = self.page.evaluate("window.refused")
            self.found.check(not refused, f"{path}: the policy refused {refused}")
            self.found.check(self.page.evaluate("window.hacked === undefined"), f"{path}: what a publisher wrote was run")

    def is_accessible(self, what, axe):
        for details in self.page.locator("details").all()[:40]:
            details.evaluate("one => { one.open = true; }")
        self.page.evaluate(axe)
        for serious in self.page.evaluate(SERIOUS):
            self.found.check(False, f"{what}: {serious}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()

    def act(self, label, fields, said, within=None):
        """Unfolds an action, fills in its form and sends it."""
        place = within or self.page.locator("#live")
        form = place.locator("details.act", has=self.page.locator(f"summary:text-is('{label}')")).first
        form.locator("summary").click()
        for name, value in fields.items():
            field = form.locator(f"[name={name}]")
            if field.evaluate("one => one.tagName") == "SELECT":
                field.select_option(value)
            elif value is True:
                field.check()
            else:
                field.fill(value)
        for field in form.locator("[name=reason]").all():
            field.fill("tried in a browser")
        form.locator("button", has_text=label).last.click()
        self.says(said)

    def says(self, text):
        self.page.wait_for_selector("p.done")
        done = self.page.locator("p.done").inner_text()
        self.found.check(text in done, f"{self.page.url}: must say {text!r}, says {done!r}")


def try_it(needs, server, database, shots):
    from playwright.sync_api import sync_playwright
    found = Found()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=needs.browser, args=FLAGS, ignore_default_args=["--hide-scrollbars"], env={**needs.libraries} or None)
        state = signed_in(browser, server, found)

        def open_visit(**how):
            return Visit(browser, server, found, state, **how)
        if shots:
            take_shots(open_visit, database)
        look_at_everything(open_visit, needs.axe)
        for tried in (what_decides, press_keys, renew, act, replay_many, change_many, without_scripts, maintain):
            print(tried.__doc__, flush=True)
            with open_visit(scripts=tried != without_scripts) as visit:
                tried(visit, database)
        browser.close()
    return local.verdict(found.wrong, "everything is well")


def signed_in(browser, server, found):
    with Visit(browser, server, found) as visit:
        visit.page.goto(server.link)
        found.check(visit.page.url.rstrip("/") == server.url, f"the link leads to {visit.page.url}")
        return visit.context.storage_state()


def look_at_everything(open_visit, axe):
    for scheme, width, scale in (("light", 360, 1), ("light", 1280, 1), ("light", 1680, 1), ("dark", 360, 1), ("dark", 1280, 1), ("light", 640, 2)):
        print(f"every page, {scheme}, {width} px, at {scale}00 %", flush=True)
        with open_visit(color_scheme=scheme, viewport={"width": width, "height": 800 // scale}, device_scale_factor=scale,
                        reduced_motion="reduce") as visit:
            for path in PAGES:
                visit.go(path)
                wide, inner = visit.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
                visit.found.check(wide <= inner, f"{path}: {wide} px wide on a screen of {inner} px")
                if scale == 1:
                    visit.is_accessible(f"{path}, {scheme}, {width} px", axe)


def what_decides(visit, database):
    """what decides stands first"""
    for width in (1280, 1680):
        visit.page.set_viewport_size({"width": width, "height": FIRST_PX})
        for path, names in DECIDES.items():
            visit.go(path)
            found = visit.page.evaluate(WHERE, list(names))
            seen = {one["name"] for one in found}
            visit.found.check(found and seen.issuperset(names), f"{path}: the columns {names} must be there, got {seen}")
            for one in found:
                what = f"{path}, {width} px: the column {one['name']}"
                visit.found.check(one["right"] <= 1, f"{what} ends {one['right']:.0f} px outside")
                visit.found.check(not names or one["bottom"] <= FIRST_PX, f"{what} ends at {one['bottom']:.0f} px")
                visit.found.check(not names or one["tall"] <= 80, f"{what}: a row is {one['tall']:.0f} px high")
        place = visit.page.locator(".attention").bounding_box()
        visit.found.check(place["y"] + place["height"] <= FIRST_PX, f"/, {width} px: what needs attention ends at {place}")
    # A table that is wider than its room is moved by keys.
    visit.page.set_viewport_size({"width": 360, "height": 800})
    visit.go("/services")
    room = visit.page.locator("#live > .scroll").first
    room.focus()
    visit.page.keyboard.press("ArrowRight")
    is_moved = "one => one.scrollLeft > 0"
    for _ in range(PATIENCE_MS // 100):
        if room.evaluate(is_moved):
            return
        visit.page.wait_for_timeout(100)
    visit.found.check(False, "/services, 360 px: the right arrow must move the table")


def press_keys(visit, database):
    """keys"""
    page = visit.page
    visit.go("/events")
    page.keyboard.press("/")
    visit.found.check(page.evaluate("document.activeElement.matches('form.filters input')"), "/ must lead to the filter")
    page.evaluate("document.activeElement.blur()")
    for key in "jjk":
        page.keyboard.press(key)
    first = page.locator("tr.go").first.locator("a").first
    visit.found.check(first.evaluate("one => one === document.activeElement"), "j, j and k must lead to the first row")
    wanted = first.get_attribute("href")
    page.keyboard.press("o")
    page.wait_for_url(f"**{wanted}")
    page.keyboard.press("?")
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog[open]", state="hidden")
    page.go_back()
    visit.found.check(urlparse(page.url).path == "/events", "back must lead back")
    page.locator("body").press("Tab")
    page.get_by_label("Event id, kind or correlation id").fill("502")
    page.keyboard.press("Enter")
    page.wait_for_url("**/events/502")


def renew(visit, database):
    """what renews itself"""
    page, parts = visit.page, []
    page.clock.install()
    page.on("request", lambda request: parts.append(request.url) if "hx-request" in request.headers else None)
    visit.go("/kinds")
    database.run("INSERT INTO tidegate.event_kind (kind) VALUES ('just_made')")
    page.clock.run_for(5100)
    page.wait_for_selector("text=just_made")
    visit.found.check(len(parts) == 1, f"one request renews a page, {len(parts)} did")
    page.get_by_role("button", name="Refresh every 5 s", pressed=True).click()
    page.clock.run_for(60_000)
    visit.found.check(len(parts) == 1, "a page that is paused asks for nothing")
    page.locator("#pulse").click()
    page.clock.fast_forward(16 * 60 * 1000)
    asked = len(parts)
    page.clock.run_for(60_000)
    visit.found.check(len(parts) == asked, "a page that nobody touches asks for nothing after a quarter of an hour")
    database.run("DELETE FROM tidegate.event_kind WHERE kind = 'just_made'")


def act(visit, database):
    """every action by a click"""
    for action in ACTIONS:
        visit.go(action["at"])
        row = None
        if "row" in action:
            row = visit.page.locator("tbody tr", has=visit.page.get_by_role("rowheader", name=action["row"], exact=True))
        visit.act(action["press"], action.get("type", {}), action["said"], within=row)
        visit.found.check(database.holds(action["holds"]), f"{action['at']}: {action['press']}: {action['holds']}")
    visit.go("/events?correlation_id=order-9025")
    visit.page.locator(".pick").first.check()
    visit.page.locator("details.act summary", has_text="Act on the selected").click()
    visit.page.locator("form.picks [name=reason]").fill("tried in a browser")
    visit.page.get_by_role("button", name="Cancel").click()
    visit.says("cancelled · 1")
    actors = database.run("SELECT DISTINCT actor FROM tidegate.audit WHERE reason = 'tried in a browser'")
    visit.found.check(actors == [["ada"]], f"the audit names {actors}")


def replay_many(visit, database):
    """a replay of many"""
    page = visit.page
    visit.go("/dead")
    row = page.locator("tbody tr", has_text="invoice_sent").filter(has_text="timeout").first
    row.get_by_role("link", name="Replay …").click()
    page.wait_for_selector("section.confirm")
    database.run("""INSERT INTO tidegate.event_log (id, kind, status, attempts, max_attempts, errors, created_at, finished_at, expires_at)
        VALUES (701, 'invoice_sent', 'FAILED', 5, 5, '[{"code": "timeout"}]', now(), now(), now() + interval '9 days')""")
    confirm(page)
    page.wait_for_selector("text=Nothing was done")
    page.go_back()
    page.reload()
    confirm(page)
    visit.says("replayed")
    visit.found.check(database.holds("SELECT count FROM tidegate.audit WHERE action = 'replay' ORDER BY id DESC LIMIT 1") > 1, "nothing was replayed")


def change_many(visit, database):
    """all events of a filter, a publish, and a person who is forgotten"""
    page = visit.page
    visit.go("/events?kind=stock_counted")
    page.get_by_role("link", name="Start now …").click()
    confirm(page)
    visit.says("rescheduled")
    visit.go("/events?kind=stock_counted")
    page.get_by_role("link", name="Cancel …").click()
    confirm(page)
    visit.says("cancelled")
    visit.found.check(database.holds("SELECT count(*) = 0 FROM tidegate.event_queue WHERE kind = 'stock_counted'"), "events of the filter are left")
    visit.go("/events?kind=parcel_shipped")
    page.locator("summary", has_text="Search in payloads").click()
    page.locator("form [name=text]").fill('"sku" : "A-22"')
    page.get_by_role("button", name="Search").click()
    page.wait_for_selector("text=contain the text")
    visit.found.check(page.locator("tr.go").count() == 1, "one payload contains the text")
    visit.go("/events")
    page.get_by_role("link", name="Publish an event …").click()
    page.locator("section.publish [name=kind]").select_option("order_placed")
    page.locator("section.publish [name=payload]").fill('{"order_id": 7}')
    page.locator("section.publish [name=group]").fill("customer-tried")
    page.locator("section.publish [name=reason]").fill("tried in a browser")
    page.get_by_role("button", name="Publish").click()
    visit.says("Published event")
    visit.go("/actions/forget")
    page.locator("form.filters [name=group]").fill("customer-tried")
    page.get_by_role("button", name="Dry run").click()
    page.wait_for_selector("section.confirm")
    page.locator("section.confirm [name=typed]").fill("customer-tried")
    confirm(page)
    visit.says("forgotten · 1")
    visit.found.check(database.holds("SELECT count(*) = 0 FROM tidegate.event_queue WHERE group_key = 'customer-tried'"), "the person is still there")


def maintain(visit, database):
    """a cleanup"""
    database.run("""INSERT INTO tidegate.event_log (id, kind, status, attempts, max_attempts, errors, created_at, finished_at, expires_at)
        VALUES (702, 'invoice_sent', 'COMPLETED', 1, 5, '[]', now(), now(), now() - interval '1 hour')""")
    for path, label, fields, said, holds in LAST:
        visit.go(path)
        visit.act(label, fields, said)
        visit.found.check(database.holds(holds), f"{path}: {label}: {holds}")


def confirm(page):
    page.wait_for_selector("section.confirm")
    page.locator("section.confirm [name=reason]").fill("tried in a browser")
    page.locator("section.confirm button").click()


def without_scripts(visit, database):
    """without scripts"""
    page = visit.page
    visit.go("/events")
    page.locator("form.filters [name=kind]").fill("invoice_sent")
    page.locator("form.filters [name=status]").select_option("FAILED")
    page.locator("form.filters button").click()
    page.wait_for_url("**/events?kind=invoice_sent&status=FAILED*")
    page.locator("tr.go a").first.click()
    page.wait_for_url("**/events/*")
    visit.go("/kinds/parcel_shipped")
    visit.act("Pause", {}, "It is paused now")
    visit.found.check(database.holds("SELECT paused FROM tidegate.event_kind WHERE kind = 'parcel_shipped'"), "without scripts nothing was paused")


def take_shots(open_visit, database):
    # Without what somebody hostile has published.
    database.run("CREATE TABLE aside AS SELECT * FROM tidegate.event_log WHERE id = 601; DELETE FROM tidegate.event_log WHERE id = 601")
    folder = PROJECT / "docs" / "img"
    folder.mkdir(exist_ok=True)
    for scheme, names in (("light", SHOTS), ("dark", {"overview-dark": "/"})):
        with open_visit(color_scheme=scheme, viewport={"width": 1180, "height": 860}) as visit:
            for name, path in names.items():
                visit.go(path)
                place = folder / f"console-{name}.png"
                visit.page.screenshot(path=place)
                print(f"{place.relative_to(PROJECT)}: {place.stat().st_size // 1000} kB")
    database.run("INSERT INTO tidegate.event_log SELECT * FROM aside; DROP TABLE aside")


if __name__ == "__main__":
    local.run_script(main)
