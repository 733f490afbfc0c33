//! The terminal of `highwater top`: an alternate screen in raw mode, restored on exit.

use std::io::{self, Stdout, Write};
use std::time::{Duration, Instant};

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, poll, read};
use crossterm::style::Print;
use crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode, size,
};
use crossterm::{execute, queue};

/// A command from the keyboard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    /// Quit: q, Escape or Ctrl-C.
    Quit,
    /// Change the order: s.
    Order,
    /// The terminal was resized.
    Redraw,
    /// No key within the timeout.
    None,
}

/// The terminal in raw mode. Dropping it restores the terminal, also while unwinding.
#[derive(Debug)]
pub(super) struct Screen {
    out: Stdout,
}

impl Screen {
    pub(super) fn open() -> io::Result<Self> {
        enable_raw_mode()?;
        // From here on, dropping `screen` restores the terminal.
        let mut screen = Self { out: io::stdout() };
        execute!(screen.out, EnterAlternateScreen, Hide)?;
        Ok(screen)
    }

    /// Columns and rows.
    pub(super) fn size(&self) -> io::Result<(usize, usize)> {
        size().map(|(columns, rows)| (columns.into(), rows.into()))
    }

    /// Shows these lines, which must fit.
    pub(super) fn show(&mut self, lines: &[String]) -> io::Result<()> {
        for (row, line) in (0..).zip(lines) {
            queue!(self.out, MoveTo(0, row), Print(line), Clear(ClearType::UntilNewLine))?;
        }
        queue!(self.out, Clear(ClearType::FromCursorDown))?;
        self.out.flush()
    }

    /// Waits for a key, at most this long.
    pub(super) fn wait(&self, most: Duration) -> io::Result<Key> {
        let end = Instant::now() + most;
        loop {
            if !poll(end.saturating_duration_since(Instant::now()))? {
                return Ok(Key::None);
            }
            if let Some(key) = meaning(&read()?) {
                return Ok(key);
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // There is no way left to report an error.
        let _ = execute!(self.out, Show, LeaveAlternateScreen);
        let _ = disable_raw_mode();
    }
}

/// The key of an event, if it has a meaning.
fn meaning(event: &Event) -> Option<Key> {
    match event {
        Event::Resize(..) => Some(Key::Redraw),
        Event::Key(KeyEvent { kind: KeyEventKind::Release, .. }) => None,
        // A raw terminal sends no signal.
        Event::Key(KeyEvent { code: KeyCode::Char('c'), modifiers: KeyModifiers::CONTROL, .. }) => {
            Some(Key::Quit)
        }
        Event::Key(KeyEvent { code: KeyCode::Char('q') | KeyCode::Esc, .. }) => Some(Key::Quit),
        Event::Key(KeyEvent { code: KeyCode::Char('s'), .. }) => Some(Key::Order),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_quit_are_q_escape_and_ctrl_c() {
        let key = |code, modifiers| meaning(&Event::Key(KeyEvent::new(code, modifiers)));
        for (code, modifiers) in [
            (KeyCode::Char('q'), KeyModifiers::NONE),
            (KeyCode::Esc, KeyModifiers::NONE),
            (KeyCode::Char('c'), KeyModifiers::CONTROL),
        ] {
            assert_eq!(key(code, modifiers), Some(Key::Quit));
        }
        assert_eq!(key(KeyCode::Char('s'), KeyModifiers::NONE), Some(Key::Order));
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::NONE), None);
        assert_eq!(meaning(&Event::Resize(80, 24)), Some(Key::Redraw));
    }
}
