//! Patterns that choose tensors by name, as a shell chooses files.

/// Whether a name fits a pattern in which `*` stands for any characters and `?` for one.
pub fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    // Where the last star stands, and up to where it has swallowed the name so far.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(&c) if c == '?' || c == name[n] => (p, n) = (p + 1, n + 1),
            _ => match star {
                Some((at, swallowed)) => {
                    star = Some((at, swallowed + 1));
                    (p, n) = (at + 1, swallowed + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_as_a_shell_s_would() {
        for (pattern, name, fits) in [
            ("*", "", true),
            ("*", "anything.at.all", true),
            ("*.weight", "layers.0.q.weight", true),
            ("*.weight", "layers.0.q.weight_scale", false),
            ("layers.?.*", "layers.1.up", true),
            ("layers.?.*", "layers.10.up", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("exact", "exact", true),
            ("exact", "exactly", false),
            ("", "x", false),
            ("?", "é", true),
        ] {
            assert_eq!(matches(pattern, name), fits, "{pattern:?} {name:?}");
        }
    }
}
