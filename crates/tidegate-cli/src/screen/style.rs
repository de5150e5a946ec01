//! Owns colours and weights. Where colours are refused, weight alone makes the difference.

use ratatui::style::{Color, Modifier, Style as Drawn};

/// Whether there are colours.
#[derive(Debug, Clone, Copy)]
pub struct Style {
    pub is_coloured: bool,
}

impl Style {
    fn of(self, color: Color) -> Drawn {
        if self.is_coloured {
            Drawn::new().fg(color)
        } else {
            Drawn::new()
        }
    }

    /// Something that needs an operator.
    pub fn alarm(self) -> Drawn {
        self.of(Color::Red).add_modifier(Modifier::BOLD)
    }

    /// Something that will need one.
    pub fn warning(self) -> Drawn {
        self.of(Color::Yellow).add_modifier(Modifier::BOLD)
    }

    /// Something that went well.
    pub fn good(self) -> Drawn {
        self.of(Color::Green)
    }

    /// The line of what is there.
    pub fn depth(self) -> Drawn {
        self.of(Color::Yellow)
    }

    /// The headings of a table.
    pub fn heading() -> Drawn {
        Drawn::new().add_modifier(Modifier::BOLD)
    }

    /// The chosen line.
    pub fn chosen() -> Drawn {
        Drawn::new().add_modifier(Modifier::REVERSED)
    }

    /// Text of little importance.
    pub fn dim() -> Drawn {
        Drawn::new().add_modifier(Modifier::DIM)
    }
}
