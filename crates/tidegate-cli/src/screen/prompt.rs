//! A prompt for the reason of an action. Without a reason, nothing is done.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};

use super::{Action, Key, centred};

/// The longest reason that the database accepts.
const LONGEST: usize = 1000;

pub struct Prompt {
    action: Action,
    reason: String,
    is_missing: bool,
}

/// The state of the prompt after a key.
pub enum Typed {
    Goes,
    Cancelled,
    Given { action: Action, reason: String },
}

impl Prompt {
    pub fn new(action: Action) -> Self {
        Self {
            action,
            reason: String::new(),
            is_missing: false,
        }
    }

    pub fn press(&mut self, key: Key) -> Typed {
        self.is_missing = false;
        match key {
            Key::Escape => return Typed::Cancelled,
            Key::Enter if self.reason.trim().is_empty() => self.is_missing = true,
            Key::Enter => {
                return Typed::Given {
                    action: self.action.clone(),
                    reason: self.reason.trim().to_owned(),
                };
            }
            Key::Erase => {
                self.reason.pop();
            }
            Key::Char(c) if self.reason.chars().count() < LONGEST => self.reason.push(c),
            _ => {}
        }
        Typed::Goes
    }

    pub fn draw(&self, frame: &mut Frame, within: Rect) {
        let area = centred(within, 70, 4);
        let block = Block::bordered().title(format!(" {} ", self.action.title()));
        let room = usize::from(block.inner(area).width);
        let hint = if self.is_missing {
            "a reason is needed, for the audit"
        } else {
            "⏎ do it   Esc leave it"
        };
        let lines = vec![Line::from(self.tail(room)), Line::from(hint)];
        frame.render_widget(Clear, area);
        frame.render_widget(Paragraph::new(lines).block(block), area);
    }

    /// Returns the end of the typed text, as much as fits.
    fn tail(&self, room: usize) -> String {
        let mut line = format!("reason: {}▏", self.reason);
        while Span::raw(line.as_str()).width() > room && !line.is_empty() {
            line.remove(0);
        }
        line
    }
}
