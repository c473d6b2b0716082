//! Words of PTX: names, modifiers, numbers, strings and single characters, each with its place in the text.
//!
//! Words are made one at a time, so that a text costs no memory beyond itself. A modifier (`.global`, `.shared::cta`)
//! is one word with its dot, since PTX allows a space before it and none inside.

use crate::error::Error;

/// The longest text that is read: places are kept in 32 bits, and no compiler writes more for one module.
const MOST_BYTES: usize = 1 << 30;

/// What a word is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A name or an opcode; `%` and `$` may be in it.
    Name,
    /// A modifier or a directive, with its dot.
    Dot,
    /// A number of any spelling, without its sign.
    Number,
    /// A string, with its quotes.
    Quoted,
    /// One character that means something by itself.
    Sign,
    /// The end of the text.
    End,
}

/// A word and where it begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word<'t> {
    pub(super) kind: Kind,
    pub(super) text: &'t str,
    pub(super) at: u32,
}

impl Word<'_> {
    pub(super) fn is(&self, sign: &str) -> bool {
        self.kind == Kind::Sign && self.text == sign
    }
}

/// Where in a text something is, and the beginning of it: for errors.
pub(super) fn refuse(text: &str, at: u32, found: &str, wanted: impl Into<String>) -> Error {
    let before = text.get(..at as usize).unwrap_or(text);
    let line = 1 + before.bytes().filter(|byte| *byte == b'\n').count() as u32;
    let column = 1 + before.rsplit('\n').next().unwrap_or_default().chars().count() as u32;
    let mut short: String = found.chars().take(60).filter(|c| !c.is_control()).collect();
    if short.len() < found.len() {
        short.push('…');
    }
    Error::Text { line, column, found: short, wanted: wanted.into() }
}

/// Makes words of a text.
#[derive(Clone)]
pub(super) struct Lexer<'t> {
    pub(super) text: &'t str,
    at: usize,
}

fn begins_name(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || matches!(byte, b'_' | b'$' | b'%')
}

fn in_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$')
}

impl<'t> Lexer<'t> {
    pub(super) fn new(text: &'t str) -> Result<Self, Error> {
        if text.len() > MOST_BYTES {
            return Err(refuse(text, 0, &format!("a text of {} bytes", text.len()), "one of at most 1 GiB"));
        }
        Ok(Lexer { text, at: 0 })
    }

    fn byte(&self, ahead: usize) -> u8 {
        self.text.as_bytes().get(self.at + ahead).copied().unwrap_or(0)
    }

    fn skip(&mut self, while_in: impl Fn(u8) -> bool) {
        while self.at < self.text.len() && while_in(self.byte(0)) {
            self.at += 1;
        }
    }

    /// Leaves out spaces and comments.
    fn skip_blanks(&mut self) -> Result<(), Error> {
        loop {
            self.skip(|byte| byte.is_ascii_whitespace());
            match (self.byte(0), self.byte(1)) {
                (b'/', b'/') => self.skip(|byte| byte != b'\n'),
                (b'/', b'*') => match self.text[self.at + 2..].find("*/") {
                    Some(end) => self.at += end + 4,
                    None => return Err(refuse(self.text, self.at as u32, "/*", "the end of the comment, */")),
                },
                _ => return Ok(()),
            }
        }
    }

    /// The next word.
    pub(super) fn next(&mut self) -> Result<Word<'t>, Error> {
        self.skip_blanks()?;
        let start = self.at;
        let kind = match self.byte(0) {
            _ if start == self.text.len() => Kind::End,
            b'.' if in_name(self.byte(1)) => {
                self.at += 1;
                self.skip(in_name);
                while self.byte(0) == b':' && self.byte(1) == b':' && in_name(self.byte(2)) {
                    self.at += 2;
                    self.skip(in_name);
                }
                Kind::Dot
            }
            byte if begins_name(byte) => {
                self.at += 1;
                self.skip(in_name);
                Kind::Name
            }
            b'0'..=b'9' => {
                self.number();
                Kind::Number
            }
            b'"' => match self.text[start + 1..].find(['"', '\n']) {
                Some(end) if self.text.as_bytes()[start + 1 + end] == b'"' => {
                    self.at += end + 2;
                    Kind::Quoted
                }
                _ => return Err(refuse(self.text, start as u32, "\"", "the end of the string, on the same line")),
            },
            byte if byte.is_ascii_graphic() => {
                self.at += 1;
                Kind::Sign
            }
            _ => {
                let found = self.text[start..].chars().next().map(|c| c.escape_default().to_string());
                return Err(refuse(self.text, start as u32, &found.unwrap_or_default(), "PTX, which is plain ASCII"));
            }
        };
        Ok(Word { kind, text: &self.text[start..self.at], at: start as u32 })
    }

    /// Goes over a number: `0x` and letters, digits with a suffix, or a decimal fraction.
    fn number(&mut self) {
        self.skip(|byte| byte.is_ascii_alphanumeric());
        let exponent = |lexer: &Lexer<'_>| matches!(lexer.text.as_bytes()[lexer.at - 1], b'e' | b'E');
        if self.byte(0) == b'.' && self.byte(1).is_ascii_digit() {
            self.at += 1;
            self.skip(|byte| byte.is_ascii_alphanumeric());
        }
        if matches!(self.byte(0), b'+' | b'-') && exponent(self) && self.byte(1).is_ascii_digit() {
            self.at += 1;
            self.skip(|byte| byte.is_ascii_digit());
        }
    }
}
