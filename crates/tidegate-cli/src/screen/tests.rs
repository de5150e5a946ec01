//! The live view's pictures, on a simulated terminal.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;
use serde_json::json;

use super::overview::LONGEST;
use super::*;

fn screen() -> Screen {
    Screen::new(Duration::from_secs(1), true)
}

fn stats(backlog: u64) -> StatsReport {
    // The type may grow, so it cannot be written as a literal.
    let mut stats = StatsReport::default();
    stats.backlog = backlog;
    stats.in_flight = 3;
    stats.delayed = 2;
    stats.stuck = 1;
    stats.blocked_groups = 4;
    stats.dead_letters_last_day = 5;
    stats.finished_last_hour = 600;
    stats.kinds = vec![
        json!({"kind": "idle", "events": 0, "completed": 0}),
        json!({"kind": "small", "events": 1, "pending": 1, "paused": true}),
        json!({"kind": "large", "events": backlog, "pending": backlog, "completed": 600,
               "failure_rate": 0.25, "latency_p95_ms": 1500, "oldest_age_ms": 61_000}),
    ];
    stats
}

#[expect(clippy::unnecessary_wraps, reason = "a screen takes results")]
fn seen(backlog: u64, rate: Option<f64>) -> Result<Look, String> {
    Ok(Look {
        oldest_age_ms: 61_000,
        rate,
        stats: Some(stats(backlog)),
        at_work: vec![
            json!({"id": 7, "kind": "import", "handler": "read", "part": 0.4, "note": "row 400"}),
        ],
    })
}

fn picture(screen: &mut Screen, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen.draw(frame)).unwrap();
    terminal.backend().to_string()
}

#[test]
fn b9_it_shows_depth_age_rate_and_what_needs_an_operator() {
    let mut screen = screen();
    assert!(picture(&mut screen, 100, 20).contains("looking…"));
    screen.take(seen(41, None));
    screen.take(seen(80, Some(12.4)));
    let shown = picture(&mut screen, 110, 20);
    for text in [
        "every 1s",
        "80 events in the queue, the oldest 1m 1s old",
        "in flight 3   delayed 2   finished in the last hour 600",
        "stuck 1   blocked groups 4   dead letters of the last day 5",
        "in the queue: 80",
        "finished: 12/s",
        "peak 80",
        "peak 13",
        "25.0 %",
        "paused",
        "read of import 7: 40.0 % row 400",
    ] {
        assert!(shown.contains(text), "{text:?} is not in\n{shown}");
    }
    assert!(!shown.contains("idle"), "{shown}");
    assert!(shown.find("large") < shown.find("small"), "{shown}");
    assert!(shown.contains('█') && shown.contains('▄'), "{shown}");
}

#[test]
fn every_heading_and_figure_has_room_in_80_columns() {
    let mut screen = screen();
    screen.take(seen(1_234_567, Some(12.4)));
    let shown = picture(&mut screen, 80, 24);
    for text in [
        "kind", "pending", "run", "delayed", "oldest", "fin/h", "fail", "p95", "1234567", "1m1s",
        "25.0 %", "paused",
    ] {
        assert!(
            shown.contains(&format!("{text} ")) || shown.contains(&format!("{text}\"")),
            "{text:?} is not in\n{shown}"
        );
    }
}

#[test]
fn a_database_that_is_away_is_told_above_the_last_figures_until_it_is_back() {
    let mut screen = screen();
    screen.take(Err("connect: refused".to_owned()));
    let away = "the database is away, trying again: connect: refused";
    assert!(picture(&mut screen, 100, 20).contains(away));
    screen.take(seen(80, Some(1.0)));
    assert!(!picture(&mut screen, 100, 20).contains("away"));
    screen.take(Err("connect: refused".to_owned()));
    let shown = picture(&mut screen, 100, 20);
    assert!(
        shown.contains(away) && shown.contains("80 events"),
        "{shown}"
    );
    assert!(!shown.contains("/s "), "{shown}");
}

#[test]
fn it_fits_into_every_size() {
    let mut screen = screen();
    for n in 0..1000 {
        screen.take(seen(n, Some(1.0)));
    }
    assert_eq!(screen.overview.histories().0.len(), LONGEST);
    for (width, height) in [(1, 1), (2, 3), (20, 8), (80, 24), (700, 100)] {
        picture(&mut screen, width, height);
    }
}

#[test]
fn figures_that_were_not_looked_for_stay_as_they_were() {
    let mut screen = screen();
    screen.take(seen(80, None));
    screen.take(Ok(Look {
        oldest_age_ms: 125_000,
        rate: Some(0.2),
        stats: None,
        at_work: Vec::new(),
    }));
    let shown = picture(&mut screen, 100, 20);
    assert!(
        shown.contains("80 events in the queue, the oldest 2m 5s old"),
        "{shown}"
    );
    assert_eq!(
        (
            screen.overview.histories().0.len(),
            screen.overview.histories().1.back()
        ),
        (2, Some(&1))
    );
}

/// Opens a kind with events and one of the events. `finished` is the end of that event.
fn opened(finished: Option<&str>) -> Screen {
    let mut screen = screen();
    screen.take(seen(80, Some(1.0)));
    let asked = screen.press(Key::Enter);
    let wish = |view| {
        let kind = "large".to_owned();
        let before = None;
        Step::Ask(Wish::Events { kind, view, before })
    };
    assert_eq!(asked, wish(View::All));
    let events = (1..=30).rev().map(|id| {
        json!({"id": id, "kind": "large", "status": "PENDING", "attempts": 1, "group_key": "g", "created_at": "2031-02-03T04:05:06Z",
               "finished_at": finished, "last_error": "503: down\nand out"})
    });
    told(&mut screen, View::All, None, events.collect());
    screen
}

fn told(screen: &mut Screen, view: View, before: Option<i64>, events: Vec<Value>) {
    let kind = "large".to_owned();
    let next = screen.told(Told::Events {
        kind,
        view,
        before,
        events,
    });
    assert_eq!(next, None);
}

fn typed(screen: &mut Screen, text: &str) {
    for c in text.chars() {
        assert_eq!(screen.press(Key::Char(c)), Step::Stay);
    }
}

fn act(action: Action) -> Step {
    let reason = "it hangs".to_owned();
    Step::Ask(Wish::Act { action, reason })
}

const SIZES: [(u16, u16); 2] = [(80, 24), (60, 15)];

#[test]
fn kinds_events_and_one_event_fit_into_usual_and_small_terminals() {
    for (width, height) in SIZES {
        let mut screen = opened(None);
        let shown = picture(&mut screen, width, height);
        for text in [
            "› large",
            "30",
            "PENDING",
            "04:05:06",
            "503: down",
            "⏎ show",
        ] {
            assert!(shown.contains(text), "{text:?} is not in\n{shown}");
        }
        assert_eq!(screen.press(Key::Enter), Step::Ask(Wish::Show(30)));
        let lines: Vec<String> = (0..50)
            .map(|line| format!("line {line} {}", "x".repeat(100)))
            .collect();
        let event = json!({"id": 30, "in": "event_queue"});
        screen.told(Told::Shown {
            event,
            text: lines.join("\n"),
        });
        let shown = picture(&mut screen, width, height);
        assert!(
            shown.contains("› event 30") && shown.contains("line 0 x"),
            "{shown}"
        );
        screen.press(Key::Last);
        let shown = picture(&mut screen, width, height);
        assert!(
            shown.contains("line 49 x") && !shown.contains("line 0 x"),
            "{shown}"
        );
        screen.press(Key::PageUp);
        let shown = picture(&mut screen, width, height);
        assert!(!shown.contains("line 49 x"), "{shown}");
        screen.press(Key::Char('?'));
        let shown = picture(&mut screen, width, height);
        assert!(
            shown.contains("requeue the event") && shown.contains("any key closes it"),
            "{shown}"
        );
        // Closes the keys, then the event, then the list, then the view.
        for step in [Step::Stay, Step::Stay, Step::Stay, Step::End] {
            assert_eq!(screen.press(Key::Char('q')), step);
        }
    }
}

#[test]
fn what_expires_is_drawn() {
    for (width, height) in SIZES {
        let mut screen = screen();
        let mut figures = stats(80);
        let expiring =
            json!({"kind": "small", "events": 7, "first_deadline": "2031-02-03T04:05:06+00:00"});
        figures.expiring = vec![serde_json::from_value(expiring).unwrap()];
        let (oldest_age_ms, rate, at_work) = (0, None, Vec::new());
        screen.take(Ok(Look {
            oldest_age_ms,
            rate,
            stats: Some(figures),
            at_work,
        }));
        let shown = picture(&mut screen, width, height);
        let told = "7 will expire, first small at 2031-02-03 04:05:06";
        assert!(shown.contains(told), "{shown}");
        let line = shown.lines().find(|line| line.contains("small  ")).unwrap();
        assert!(line.contains(" 7 ") && line.contains("paused"), "{shown}");
    }
}

#[test]
fn a_list_longer_than_the_screen_scrolls_and_asks_for_more_at_its_end() {
    let mut screen = opened(None);
    let page = |from: i64| {
        (from..from + i64::from(EVENTS))
            .rev()
            .map(|id| json!({"id": id}))
            .collect()
    };
    told(&mut screen, View::All, None, page(1001));
    picture(&mut screen, 80, 24);
    screen.press(Key::PageDown);
    let shown = picture(&mut screen, 80, 24);
    assert!(shown.contains("1179"), "{shown}");
    screen.press(Key::Char('k'));
    screen.press(Key::Char('j'));
    let kind = "large".to_owned();
    let (view, before) = (View::All, Some(1001));
    assert_eq!(
        screen.press(Key::Last),
        Step::Ask(Wish::Events { kind, view, before })
    );
    assert_eq!(screen.press(Key::Down), Step::Stay, "it is under way");
    told(&mut screen, View::All, before, page(801));
    assert_eq!(screen.refresh(), None, "who reads on is not sent back");
    screen.press(Key::Down);
    screen.press(Key::Enter);
    let shown = picture(&mut screen, 80, 24);
    assert!(shown.contains("1000"), "{shown}");
}

#[test]
fn an_action_asks_for_a_reason_first_and_tells_what_it_has_done() {
    for (width, height) in SIZES {
        let mut screen = opened(None);
        assert_eq!(screen.press(Key::Char('r')), Step::Stay);
        assert!(picture(&mut screen, width, height).contains("a live event is not replayed"));
        screen.press(Key::Char('j'));
        assert_eq!(screen.press(Key::Char('u')), Step::Stay);
        assert!(picture(&mut screen, width, height).contains("requeue event 29"));
        assert_eq!(screen.press(Key::Enter), Step::Stay);
        assert!(picture(&mut screen, width, height).contains("a reason is needed"));
        // In a prompt, keys are letters.
        typed(&mut screen, "it hangsq");
        screen.press(Key::Erase);
        assert!(picture(&mut screen, width, height).contains("reason: it hangs"));
        assert_eq!(screen.press(Key::Enter), act(Action::Requeue(29)));
        assert!(
            screen
                .told(Told::Done("requeued 1 event".to_owned()))
                .is_some(),
            "the list is read anew"
        );
        assert!(picture(&mut screen, width, height).contains("requeued 1 event"));
        screen.told(Told::Failed("nothing was requeued".to_owned()));
        assert!(picture(&mut screen, width, height).contains("nothing was requeued"));
    }
    let mut screen = opened(Some("2031-02-03T04:05:07Z"));
    screen.press(Key::Char('r'));
    typed(&mut screen, "it hangs");
    assert_eq!(screen.press(Key::Enter), act(Action::Replay(30)));
    screen.press(Key::Char('r'));
    screen.press(Key::Escape);
    assert_eq!(
        screen.press(Key::Escape),
        Step::Stay,
        "back among the kinds"
    );
    assert_eq!(screen.press(Key::Escape), Step::End);
}

#[test]
fn a_kind_is_paused_and_one_that_is_paused_resumed() {
    let mut screen = screen();
    screen.take(seen(80, None));
    screen.press(Key::Char('p'));
    typed(&mut screen, "it hangs");
    assert_eq!(
        screen.press(Key::Enter),
        act(Action::Pause("large".to_owned()))
    );
    screen.press(Key::Down);
    screen.press(Key::Char('p'));
    typed(&mut screen, "it hangs");
    assert_eq!(
        screen.press(Key::Enter),
        act(Action::Resume("small".to_owned()))
    );
    let asked = screen.press(Key::Char('d'));
    assert!(
        matches!(
            asked,
            Step::Ask(Wish::Events {
                view: View::Dead,
                ..
            })
        ),
        "{asked:?}"
    );
}

#[test]
fn nothing_has_a_colour_where_colours_are_refused() {
    for is_coloured in [true, false] {
        let mut screen = Screen::new(Duration::from_secs(1), is_coloured);
        screen.take(seen(80, Some(1.0)));
        screen.take(Err("refused".to_owned()));
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let cells = terminal.backend().buffer().content();
        let coloured = cells
            .iter()
            .any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset);
        assert_eq!(coloured, is_coloured);
    }
}
