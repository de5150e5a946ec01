//! Owns the live view's picture: a pure function of what was seen so far. It asks nobody for anything
//! and knows no terminal.

use std::collections::VecDeque;
use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Cell, Paragraph, Row, Sparkline, Table};
use serde_json::Value;
use tidegate::invocation::StatsReport;

use crate::text;

/// More looks than a terminal has columns are forgotten.
const LONGEST_HISTORY: usize = 500;

/// What one look saw.
pub struct Look {
    /// Age of the oldest live event.
    pub oldest_age_ms: u64,
    /// Events that ended each second since the look before; `None` of the first.
    pub rate: Option<f64>,
    /// All figures; `None` when they cost too much for every look.
    pub stats: Option<StatsReport>,
    /// How far handlers say that they have come.
    pub at_work: Vec<Value>,
}

/// All that was seen so far.
pub struct Screen {
    interval: Duration,
    stats: Option<StatsReport>,
    rate: Option<f64>,
    at_work: Vec<Value>,
    depths: VecDeque<u64>,
    rates: VecDeque<u64>,
    fault: Option<String>,
}

impl Screen {
    /// A screen on which nothing was seen yet.
    pub fn new(interval: Duration) -> Self {
        Self {
            interval,
            stats: None,
            rate: None,
            at_work: Vec::new(),
            depths: VecDeque::new(),
            rates: VecDeque::new(),
            fault: None,
        }
    }

    /// What there was to see, or why there was nothing.
    pub fn take(&mut self, look: Result<Look, String>) {
        let look = match look {
            Ok(look) => look,
            Err(fault) => {
                self.fault = Some(fault);
                self.rate = None;
                return;
            }
        };
        self.fault = None;
        self.rate = look.rate;
        self.at_work = look.at_work;
        if let Some(stats) = look.stats {
            self.stats = Some(stats);
        }
        if let Some(stats) = &mut self.stats {
            stats.oldest_age_ms = look.oldest_age_ms;
            remember(&mut self.depths, stats.backlog);
        }
        if let Some(rate) = look.rate {
            remember(&mut self.rates, whole(rate));
        }
    }

    /// The last figures seen.
    pub fn stats(&self) -> Option<&StatsReport> {
        self.stats.as_ref()
    }

    /// Draws it all.
    pub fn draw(&self, frame: &mut Frame) {
        let at_work = u16::try_from(self.at_work.len()).unwrap_or(u16::MAX);
        let [head, figures, lines, work, kinds] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(3),
            Constraint::Length(7),
            Constraint::Max(at_work),
            Constraint::Min(3),
        ])
        .areas(frame.area());
        frame.render_widget(self.head(), head);
        let Some(stats) = &self.stats else {
            return;
        };
        frame.render_widget(Paragraph::new(summary(stats)), figures);
        self.draw_lines(frame, lines, stats);
        let progress: Vec<Line<'_>> = self.at_work.iter().map(progress).collect();
        frame.render_widget(Paragraph::new(progress), work);
        frame.render_widget(table(stats), kinds);
    }

    fn head(&self) -> Paragraph<'_> {
        match &self.fault {
            Some(fault) => Paragraph::new(format!("the database is away, trying again: {fault}"))
                .style(Style::new().fg(Color::Red).add_modifier(Modifier::BOLD)),
            None if self.stats.is_none() => Paragraph::new("looking…"),
            None => Paragraph::new(format!(
                "tidegate, every {}; q ends it",
                humantime::format_duration(self.interval)
            ))
            .style(Style::new().add_modifier(Modifier::DIM)),
        }
    }

    fn draw_lines(&self, frame: &mut Frame, area: Rect, stats: &StatsReport) {
        let [left, right] = Layout::horizontal([Constraint::Fill(1); 2]).areas(area);
        let depth = format!(" in the queue: {} ", stats.backlog);
        draw_line(frame, left, depth, &self.depths, Color::Yellow);
        let rate = match self.rate {
            Some(rate) => format!(" finished: {rate:.0}/s "),
            None => " finished ".to_owned(),
        };
        draw_line(frame, right, rate, &self.rates, Color::Green);
    }
}

fn remember(history: &mut VecDeque<u64>, value: u64) {
    history.push_back(value);
    if history.len() > LONGEST_HISTORY {
        history.pop_front();
    }
}

/// Rates are drawn in whole events; a slow one is not none.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a count over a time is neither negative nor beyond 2^53"
)]
fn whole(rate: f64) -> u64 {
    rate.ceil() as u64
}

fn draw_line(frame: &mut Frame, area: Rect, title: String, history: &VecDeque<u64>, color: Color) {
    let peak = history.iter().max().copied().unwrap_or(0);
    let block = Block::bordered()
        .title(title)
        .title_bottom(Line::from(format!(" peak {peak} ")).right_aligned());
    let width = usize::from(block.inner(area).width);
    // The newest at the right edge, also while there are few.
    let shown = history.len().min(width);
    let mut data = vec![0; width - shown];
    data.extend(history.iter().skip(history.len() - shown));
    let line = Sparkline::default()
        .block(block)
        .data(data)
        .style(Style::new().fg(color));
    frame.render_widget(line, area);
}

fn summary(stats: &StatsReport) -> Vec<Line<'_>> {
    let alarming = |count: u64| match count {
        0 => Style::new(),
        _ => Style::new().fg(Color::Red),
    };
    vec![
        Line::from(text::depth(stats)),
        Line::from(format!(
            "in flight {}   delayed {}   finished in the last hour {}",
            stats.in_flight, stats.delayed, stats.finished_last_hour
        )),
        Line::from(format!(
            "stuck {}   blocked groups {}   dead letters of the last day {}",
            stats.stuck, stats.blocked_groups, stats.dead_letters_last_day
        ))
        .style(alarming(stats.stuck + stats.blocked_groups)),
    ]
}

/// How far a handler has come with an event.
fn progress(event: &Value) -> Line<'_> {
    let word = |field: &str| text::cell(&event[field]);
    let line = format!(
        "{} of {} {}: {} {}",
        word("handler"),
        word("kind"),
        word("id"),
        text::percent(&event["part"]),
        word("note"),
    );
    Line::from(line)
}

/// The kinds in which something happens, the fullest first; the others are not worth a line.
fn table(stats: &StatsReport) -> Table<'_> {
    let finished = |kind: &Value| {
        let count = |field: &str| kind[field].as_u64().unwrap_or(0);
        count("completed") + count("completed_with_errors") + count("failed")
    };
    let events = |kind: &Value| kind["events"].as_u64().unwrap_or(0);
    let mut kinds: Vec<&Value> = stats
        .kinds
        .iter()
        .filter(|kind| events(kind) + finished(kind) > 0 || kind["paused"] == true)
        .collect();
    kinds.sort_by_key(|kind| std::cmp::Reverse((events(kind), finished(kind))));
    let header = [
        "kind", "pending", "run", "delayed", "oldest", "fin/h", "fail", "p95", "",
    ];
    let rows = kinds.into_iter().map(|kind| {
        Row::new([
            text::cell(&kind["kind"]),
            text::cell(&kind["pending"]),
            text::cell(&kind["processing"]),
            text::cell(&kind["delayed"]),
            shortly(&kind["oldest_age_ms"]),
            finished(kind).to_string(),
            text::percent(&kind["failure_rate"]),
            shortly(&kind["latency_p95_ms"]),
            text::paused(kind),
        ])
    });
    // With the gaps between them the 80 columns of a usual terminal.
    let widths = [
        Constraint::Min(18),
        Constraint::Length(8),
        Constraint::Length(5),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(7),
        Constraint::Length(6),
        Constraint::Length(6),
        Constraint::Length(6),
    ];
    let bold = Style::new().add_modifier(Modifier::BOLD);
    Table::new(rows, widths).header(Row::new(header.map(Cell::from)).style(bold))
}

/// The two largest units of a time, together, where there is room for them: `23h59m`, `2months`.
fn shortly(milliseconds: &Value) -> String {
    let time = text::time(milliseconds);
    let of = |units: usize| time.split(' ').take(units).collect::<String>();
    Some(of(2))
        .filter(|time| time.len() <= 6)
        .unwrap_or_else(|| of(1))
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    use super::*;

    fn stats(backlog: u64) -> StatsReport {
        // It may grow, and so cannot be written out.
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

    fn picture(screen: &Screen, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn b9_it_shows_depth_age_rate_and_what_needs_an_operator() {
        let mut screen = Screen::new(Duration::from_secs(1));
        assert!(picture(&screen, 100, 20).contains("looking…"));
        screen.take(seen(41, None));
        screen.take(seen(80, Some(12.4)));
        let shown = picture(&screen, 110, 20);
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
        let mut screen = Screen::new(Duration::from_secs(1));
        screen.take(seen(1_234_567, Some(12.4)));
        let shown = picture(&screen, 80, 24);
        for text in [
            "kind", "pending", "run", "delayed", "oldest", "fin/h", "fail", "p95", "1234567",
            "1m1s", "25.0 %", "paused",
        ] {
            assert!(
                shown.contains(&format!("{text} ")) || shown.contains(&format!("{text}\"")),
                "{text:?} is not in\n{shown}"
            );
        }
    }

    #[test]
    fn a_database_that_is_away_is_told_above_the_last_figures_until_it_is_back() {
        let mut screen = Screen::new(Duration::from_secs(1));
        screen.take(Err("connect: refused".to_owned()));
        let away = "the database is away, trying again: connect: refused";
        assert!(picture(&screen, 100, 20).contains(away));
        screen.take(seen(80, Some(1.0)));
        assert!(!picture(&screen, 100, 20).contains("away"));
        screen.take(Err("connect: refused".to_owned()));
        let shown = picture(&screen, 100, 20);
        assert!(
            shown.contains(away) && shown.contains("80 events"),
            "{shown}"
        );
        assert!(!shown.contains("/s "), "{shown}");
    }

    #[test]
    fn it_fits_into_every_size() {
        let mut screen = Screen::new(Duration::from_secs(1));
        for n in 0..1000 {
            screen.take(seen(n, Some(1.0)));
        }
        assert_eq!(screen.depths.len(), LONGEST_HISTORY);
        for (width, height) in [(1, 1), (2, 3), (20, 8), (80, 24), (700, 100)] {
            picture(&screen, width, height);
        }
    }

    #[test]
    fn figures_that_were_not_looked_for_stay_as_they_were() {
        let mut screen = Screen::new(Duration::from_secs(1));
        screen.take(seen(80, None));
        screen.take(Ok(Look {
            oldest_age_ms: 125_000,
            rate: Some(0.2),
            stats: None,
            at_work: Vec::new(),
        }));
        let shown = picture(&screen, 100, 20);
        assert!(
            shown.contains("80 events in the queue, the oldest 2m 5s old"),
            "{shown}"
        );
        assert_eq!((screen.depths.len(), screen.rates.back()), (2, Some(&1)));
    }
}
