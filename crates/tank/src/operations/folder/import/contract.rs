//! What a problem's own code has to be so that the referee can call it in the place of the runner that it was written
//! for: functions with what a problem tells them, in one process with one GPU. Only its text is looked at.

/// Functions of a task's reference, and what its runner does with a submission.
pub(super) const OF_TASK: [&str; 3] = ["generate_input", "ref_kernel", "check_implementation"];
pub(super) const OF_RUNNER: [&str; 3] = ["generate_input", "custom_kernel", "check_implementation"];
/// Functions of a module, beside its class `Model`.
pub(super) const OF_MODULE: [&str; 2] = ["get_inputs", "get_init_inputs"];

/// Why a problem cannot be played, by its source: it has to have these functions, and be one process's.
pub(super) fn refusal(text: &str, functions: &[&str]) -> Option<String> {
    if let Some(missing) = functions.iter().find(|function| !defines(text, function)) {
        return Some(format!("it has no {missing}, so that only its own runner can play it"));
    }
    let several = ["torch.distributed", "init_process_group", "torch.multiprocessing", "nvshmem"];
    let found = several.into_iter().find(|name| code(text).any(|line| line.contains(name)));
    found.map(|name| format!("it computes on several GPUs ({name}), and a contestant has one"))
}

/// The first parameter of a function that has no default and is none of those that are given.
pub(super) fn not_given(text: &str, function: &str, given: impl Fn(&str) -> bool) -> Option<String> {
    let from = code(text).find_map(|line| {
        let rest = line.strip_prefix("def ")?.strip_prefix(function)?.trim_start().strip_prefix('(')?;
        Some(rest.as_ptr() as usize - text.as_ptr() as usize)
    })?;
    let (mut depth, mut begin, mut named) = (0_usize, from, Vec::new());
    for (at, c) in text[from..].char_indices().map(|(at, c)| (from + at, c)) {
        match c {
            '(' | '[' | '{' => depth += 1,
            ',' | ')' if depth == 0 => {
                named.push(&text[begin..at]);
                begin = at + 1;
            }
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if c == ')' && begin == at + 1 {
            break;
        }
    }
    let of = |parameter: &&str| !parameter.contains('=') && !parameter.trim().starts_with(['*', '/']);
    let names = named.into_iter().filter(of).map(|parameter| parameter.split(':').next().unwrap_or_default().trim());
    names.filter(|name| !name.is_empty()).find(|name| !given(name)).map(str::to_owned)
}

/// Whether a name is defined at the top of a source, or comes from another.
fn defines(text: &str, name: &str) -> bool {
    let defined = |line: &str| {
        let rest = line.strip_prefix("def ").unwrap_or(line).strip_prefix(name);
        rest.is_some_and(|rest| rest.trim_start().starts_with(['(', '=', ':']))
    };
    // An import may have a line for each name.
    let imported = |line: &str| line.trim().trim_end_matches(',') == name;
    let from = |line: &str| {
        line.starts_with("from ") && line.split([' ', ',', '(', ')']).any(|word| [name, "*"].contains(&word))
    };
    code(text).any(|line| defined(line) || imported(line) || from(line))
}

/// Lines without their comments.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(|line| line.split('#').next().unwrap_or_default().trim_end())
}
