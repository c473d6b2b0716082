//! The patterns by which configurations leave modules out: names with `*`, and after `re:` regular expressions.
//!
//! Of regular expressions only what such lists hold is understood: text, `.`, `.*`, `^`, `$` and escaped characters.
//! About any other the answer is that it is not known, so that nothing is concluded from it.

/// Whether a module, or one around it, fits a name in which `*` stands for any characters.
pub(super) fn glob(pattern: &str, module: &str) -> bool {
    let steps: Vec<Step> = pattern.chars().map(|c| if c == '*' { Step::Any } else { Step::Exactly(c) }).collect();
    let ends = module.match_indices('.').map(|(at, _)| at).chain([module.len()]);
    ends.into_iter().any(|end| fits(&steps, &module[..end], true))
}

/// Whether a module fits a regular expression from its first character on, if that is one which is understood.
pub(super) fn expression(pattern: &str, module: &str) -> Option<bool> {
    let pattern = pattern.strip_prefix('^').unwrap_or(pattern);
    let (pattern, is_whole) = match pattern.strip_suffix('$') {
        Some(pattern) => (pattern, true),
        None => (pattern, false),
    };
    let mut steps = Vec::new();
    let mut rest = pattern.chars().peekable();
    while let Some(c) = rest.next() {
        steps.push(match c {
            '.' if rest.next_if_eq(&'*').is_some() => Step::Any,
            '.' => Step::One,
            '\\' => Step::Exactly(rest.next().filter(|c| !c.is_alphanumeric())?),
            c if "[](){}|+?*^$".contains(c) => return None,
            c => Step::Exactly(c),
        });
        // A repeated character is beyond what is understood.
        if rest.peek().is_some_and(|c| "*+?{".contains(*c)) {
            return None;
        }
    }
    Some(fits(&steps, module, is_whole))
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Any,
    One,
    Exactly(char),
}

/// Whether the steps lead through a text, to its end or to anywhere in it. Time is the product of both lengths.
fn fits(steps: &[Step], text: &str, is_whole: bool) -> bool {
    let text: Vec<char> = text.chars().collect();
    // Positions that the steps so far may have led to.
    let mut reached = vec![false; text.len() + 1];
    reached[0] = true;
    for step in steps {
        if *step == Step::Any {
            let first = reached.iter().position(|&is| is).unwrap_or(reached.len());
            reached[first..].fill(true);
            continue;
        }
        for at in (0..text.len()).rev() {
            reached[at + 1] = reached[at] && (*step == Step::One || *step == Step::Exactly(text[at]));
        }
        reached[0] = false;
    }
    if is_whole { reached[text.len()] } else { reached.contains(&true) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_stars_covers_modules_and_all_that_is_in_them() {
        for (pattern, module, is_fit) in [
            ("lm_head", "lm_head", true),
            ("lm_head", "lm_heads", false),
            ("model.layers.*.self_attn", "model.layers.3.self_attn.q_proj", true),
            ("model.layers.*.self_attn", "model.layers.3.mlp.up_proj", false),
            ("model.layers.0*", "model.layers.0.mlp.up_proj", true),
            ("*", "", true),
            ("a*b*c", "a.b.b.c", true),
            ("", "a", false),
        ] {
            assert_eq!(glob(pattern, module), is_fit, "{pattern} {module}");
        }
    }

    #[test]
    fn of_regular_expressions_the_plain_ones_are_understood() {
        for (pattern, module, is_fit) in [
            (".*lm_head", "model.lm_head", Some(true)),
            (r".*\.gate$", "model.layers.0.mlp.gate", Some(true)),
            (r".*\.gate$", "model.layers.0.mlp.gate_proj", Some(false)),
            ("^model", "model.layers", Some(true)),
            ("layers", "model.layers", Some(false)),
            (".*mlp.gate", "model.mlp_gate", Some(true)),
            ("(a|b)", "a", None),
            ("ab*", "abb", None),
            (r"layers\.\d+", "layers.1", None),
            ("[0-9]", "1", None),
        ] {
            assert_eq!(expression(pattern, module), is_fit, "{pattern} {module}");
        }
    }
}
