//! The first page: the figures of the whole queue, their history, and the kinds, one of them selected.

use std::cmp::Reverse;
use std::collections::VecDeque;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style as Drawn;
use ratatui::text::Line;
use ratatui::widgets::{Block, Cell, Paragraph, Row, Sparkline, Table, TableState};
use serde_json::Value;
use tidegate::invocation::StatsReport;

use super::style::Style;
use super::{Key, Look, walked};
use crate::text;

/// The longest history, which is more than a terminal has columns.
const LONGEST_HISTORY: usize = 500;

/// The results of the queries so far.
#[derive(Default)]
pub struct Overview {
    stats: Option<StatsReport>,
    rate: Option<f64>,
    at_work: Vec<Value>,
    depths: VecDeque<u64>,
    rates: VecDeque<u64>,
    /// The visible kinds, in their order.
    shown: Vec<String>,
    chosen: Option<String>,
    table: TableState,
    height: usize,
}

impl Overview {
    pub fn take(&mut self, look: Look) {
        self.rate = look.rate;
        self.at_work = look.at_work;
        if let Some(stats) = look.stats {
            self.shown = order(&stats);
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

    /// Marks the rate as unknown while the database is unavailable.
    pub fn lose_rate(&mut self) {
        self.rate = None;
    }

    pub fn stats(&self) -> Option<&StatsReport> {
        self.stats.as_ref()
    }

    pub fn is_paused(&self, kind: &str) -> bool {
        self.kind(kind).is_some_and(|kind| kind["paused"] == true)
    }

    fn kind(&self, kind: &str) -> Option<&Value> {
        let kinds = &self.stats.as_ref()?.kinds;
        kinds.iter().find(|one| one["kind"] == kind)
    }

    /// Returns the line of the selected kind. It stays selected while the order changes around it.
    fn line(&self) -> usize {
        let chosen = self.chosen.as_ref();
        let line = chosen.and_then(|chosen| self.shown.iter().position(|kind| kind == chosen));
        line.unwrap_or(0)
    }

    /// Returns the selected kind.
    pub fn selected(&self) -> Option<String> {
        self.shown.get(self.line()).cloned()
    }

    pub fn walk(&mut self, key: Key) {
        let line = walked(self.line(), key, self.shown.len(), self.height);
        self.chosen = self.shown.get(line).cloned();
    }

    pub fn draw(&mut self, frame: &mut Frame, area: Rect, style: Style) {
        if self.stats.is_none() {
            return;
        }
        let figures = self.figures(style);
        let count = |lines: usize| u16::try_from(lines).unwrap_or(u16::MAX);
        // A small terminal shows the kinds instead of the graphs.
        let lines = if area.height >= 18 { 7 } else { 0 };
        let work = count(self.at_work.len()).min(area.height / 6);
        let [head, history, at_work, kinds] = Layout::vertical([
            Constraint::Length(count(figures.len())),
            Constraint::Length(lines),
            Constraint::Length(work),
            Constraint::Min(0),
        ])
        .areas(area);
        frame.render_widget(Paragraph::new(figures), head);
        self.draw_lines(frame, history, style);
        let progress: Vec<Line<'_>> = self.at_work.iter().map(progress).collect();
        frame.render_widget(Paragraph::new(progress), at_work);
        self.draw_kinds(frame, kinds, style);
    }

    /// Returns the figures of the whole queue as text. Lines without content are left out.
    fn figures(&self, style: Style) -> Vec<Line<'static>> {
        let Some(stats) = &self.stats else {
            return Vec::new();
        };
        let mut lines = vec![
            Line::from(text::depth(stats)),
            Line::from(format!(
                "in flight {}   delayed {}   finished in the last hour {}",
                stats.in_flight, stats.delayed, stats.finished_last_hour
            )),
        ];
        let troubles = format!(
            "stuck {}   blocked groups {}   dead letters of the last day {}",
            stats.stuck, stats.blocked_groups, stats.dead_letters_last_day
        );
        let is_bad = stats.stuck + stats.blocked_groups > 0;
        lines.push(Line::from(troubles).style(if is_bad { style.alarm() } else { Drawn::new() }));
        if let Some(first) = stats.expiring.first() {
            let events: u64 = stats.expiring.iter().map(|kind| kind.events).sum();
            let expiring = format!(
                "{events} will expire, first {} at {}",
                first.kind,
                text::without_fraction(&first.first_deadline)
            );
            lines.push(Line::from(expiring).style(style.warning()));
        }
        if !stats.services_down.is_empty() {
            let down = stats.services_down.iter();
            let down: Vec<String> = down
                .map(|service| format!("{} is {}", service.service, text::state(service.state)))
                .collect();
            lines.push(Line::from(down.join(", ")).style(style.alarm()));
        }
        lines
    }

    fn draw_lines(&self, frame: &mut Frame, area: Rect, style: Style) {
        let [left, right] = Layout::horizontal([Constraint::Fill(1); 2]).areas(area);
        let backlog = self.stats.as_ref().map_or(0, |stats| stats.backlog);
        let depth = format!(" in the queue: {backlog} ");
        draw_line(frame, left, depth, &self.depths, style.depth());
        let rate = match self.rate {
            Some(rate) => format!(" finished: {rate:.0}/s "),
            None => " finished ".to_owned(),
        };
        draw_line(frame, right, rate, &self.rates, style.good());
    }

    fn draw_kinds(&mut self, frame: &mut Frame, area: Rect, style: Style) {
        let Some(stats) = &self.stats else {
            return;
        };
        self.height = usize::from(area.height.saturating_sub(1));
        let columns = columns(area.width);
        let kinds = self.shown.iter().filter_map(|kind| self.kind(kind));
        let rows: Vec<Row<'_>> = kinds
            .map(|kind| {
                let expiring = expiring(stats, kind);
                let row = Row::new(columns.iter().map(|column| column.of(kind, expiring)));
                match expiring {
                    0 => row,
                    _ => row.style(style.warning()),
                }
            })
            .collect();
        let header = columns.iter().map(|column| Cell::from(column.heading()));
        let widths: Vec<Constraint> = columns.iter().map(|column| column.width()).collect();
        let table = Table::new(rows, widths)
            .header(Row::new(header).style(Style::heading()))
            .row_highlight_style(Style::chosen());
        self.table.select(Some(self.line()));
        frame.render_stateful_widget(table, area, &mut self.table);
    }
}

/// Returns the active kinds, largest backlog first. Idle kinds get no line.
fn order(stats: &StatsReport) -> Vec<String> {
    let events = |kind: &Value| kind["events"].as_u64().unwrap_or(0);
    let mut kinds: Vec<&Value> = stats
        .kinds
        .iter()
        .filter(|kind| events(kind) + finished(kind) > 0 || kind["paused"] == true)
        .collect();
    kinds.sort_by_key(|kind| Reverse((events(kind), finished(kind))));
    kinds.iter().map(|kind| text::cell(&kind["kind"])).collect()
}

fn finished(kind: &Value) -> u64 {
    let count = |field: &str| kind[field].as_u64().unwrap_or(0);
    count("completed") + count("completed_with_errors") + count("failed")
}

/// Returns how many events of a kind will miss their deadline.
fn expiring(stats: &StatsReport, kind: &Value) -> u64 {
    let of_kind = stats
        .expiring
        .iter()
        .filter(|one| kind["kind"] == one.kind.as_str());
    of_kind.map(|one| one.events).sum()
}

/// A column with a figure of a kind.
#[derive(Clone, Copy)]
enum Column {
    Kind,
    Pending,
    Running,
    Delayed,
    Oldest,
    Finished,
    Failed,
    P95,
    Expiring,
    Paused,
}

/// Returns the columns that fit. With the gaps between them, all columns fit into 80 characters.
fn columns(width: u16) -> Vec<Column> {
    use Column::{
        Delayed, Expiring, Failed, Finished, Kind, Oldest, P95, Paused, Pending, Running,
    };
    if width >= 80 {
        vec![
            Kind, Pending, Running, Delayed, Oldest, Finished, Failed, P95, Expiring, Paused,
        ]
    } else {
        vec![Kind, Pending, Running, Delayed, Failed, Expiring, Paused]
    }
}

impl Column {
    fn heading(self) -> &'static str {
        match self {
            Self::Kind => "kind",
            Self::Pending => "pending",
            Self::Running => "run",
            Self::Delayed => "delayed",
            Self::Oldest => "oldest",
            Self::Finished => "fin/h",
            Self::Failed => "fail",
            Self::P95 => "p95",
            Self::Expiring => "exp",
            Self::Paused => "",
        }
    }

    fn width(self) -> Constraint {
        match self {
            Self::Kind => Constraint::Min(14),
            Self::Running => Constraint::Length(5),
            Self::Expiring => Constraint::Length(4),
            Self::Pending | Self::Delayed => Constraint::Length(7),
            _ => Constraint::Length(6),
        }
    }

    fn of(self, kind: &Value, expiring: u64) -> String {
        match self {
            Self::Kind => text::cell(&kind["kind"]),
            Self::Pending => text::cell(&kind["pending"]),
            Self::Running => text::cell(&kind["processing"]),
            Self::Delayed => text::cell(&kind["delayed"]),
            Self::Oldest => shortly(&kind["oldest_age_ms"]),
            Self::Finished => finished(kind).to_string(),
            Self::Failed => text::percent(&kind["failure_rate"]),
            Self::P95 => shortly(&kind["latency_p95_ms"]),
            Self::Expiring => match expiring {
                0 => String::new(),
                1..1000 => expiring.to_string(),
                _ => "999+".to_owned(),
            },
            Self::Paused => text::paused(kind),
        }
    }
}

fn remember(history: &mut VecDeque<u64>, value: u64) {
    history.push_back(value);
    if history.len() > LONGEST_HISTORY {
        history.pop_front();
    }
}

/// Rates are drawn in whole events, but a low rate must not disappear.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a count over a time is neither negative nor beyond 2^53"
)]
fn whole(rate: f64) -> u64 {
    rate.ceil() as u64
}

fn draw_line(frame: &mut Frame, area: Rect, title: String, history: &VecDeque<u64>, style: Drawn) {
    let peak = history.iter().max().copied().unwrap_or(0);
    let block = Block::bordered()
        .title(title)
        .title_bottom(Line::from(format!(" peak {peak} ")).right_aligned());
    let width = usize::from(block.inner(area).width);
    // The newest value is at the right edge, even if there are few.
    let shown = history.len().min(width);
    let mut data = vec![0; width - shown];
    data.extend(history.iter().skip(history.len() - shown));
    let line = Sparkline::default().block(block).data(data).style(style);
    frame.render_widget(line, area);
}

/// Draws the progress of a handler.
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

/// Formats the two largest units of a duration without a space, to save room: `23h59m`, `2months`.
fn shortly(milliseconds: &Value) -> String {
    let time = text::time(milliseconds);
    let of = |units: usize| time.split(' ').take(units).collect::<String>();
    Some(of(2))
        .filter(|time| time.len() <= 6)
        .unwrap_or_else(|| of(1))
}

#[cfg(test)]
impl Overview {
    pub fn histories(&self) -> (&VecDeque<u64>, &VecDeque<u64>) {
        (&self.depths, &self.rates)
    }
}

#[cfg(test)]
pub const LONGEST: usize = LONGEST_HISTORY;
