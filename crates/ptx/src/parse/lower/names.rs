//! Which names a function's statements refer to, and under which ones its variables are printed.

use std::collections::HashSet;

use crate::parse::reader::Read;
use crate::parse::syntax::{Initial, Operand, Statement};

/// The names that stand for an address: operands of anything but a direct call, and first values of variables.
pub(super) fn addressed_names<'t>(read: &Read<'t>) -> HashSet<&'t str> {
    fn look<'t>(body: &[Statement<'t>], names: &mut HashSet<&'t str>) {
        for statement in body {
            match statement {
                Statement::Instruction(call) if call.opcode.text == "call" => {}
                Statement::Block(inner) => look(inner, names),
                one => used(std::slice::from_ref(one), names),
            }
        }
    }
    let mut names = HashSet::new();
    read.functions.iter().filter_map(|function| function.body.as_ref()).for_each(|body| look(body, &mut names));
    for value in read.variables.iter().flat_map(|variable| &variable.initial) {
        if let Initial::Address { name, .. } = value {
            names.insert(name.text);
        }
    }
    names
}

/// Adds the names that statements use to a set.
pub(super) fn used<'t>(body: &[Statement<'t>], names: &mut HashSet<&'t str>) {
    fn of<'t>(operand: &Operand<'t>, names: &mut HashSet<&'t str>) {
        match operand {
            Operand::Name { name, .. } => drop(names.insert(name.text)),
            Operand::Number(..) => {}
            Operand::Not(inner) => of(inner, names),
            Operand::Pair(a, b) => [a, b].into_iter().for_each(|operand| of(operand, names)),
            Operand::Vector(all, _) | Operand::Address(all, _) | Operand::List(all, _) => {
                all.iter().for_each(|operand| of(operand, names));
            }
        }
    }
    for statement in body {
        match statement {
            Statement::Instruction(instruction) => instruction.operands.iter().for_each(|operand| of(operand, names)),
            Statement::Block(inner) => used(inner, names),
            _ => {}
        }
    }
}

/// Adds the names that statements use and did not declare themselves: those of the module. `hidden` are names that mean
/// something else there already.
pub(super) fn free<'t>(body: &[Statement<'t>], mut hidden: HashSet<&'t str>, names: &mut HashSet<&'t str>) {
    for statement in body {
        match statement {
            Statement::Variable(variable) => drop(hidden.insert(variable.name.text)),
            Statement::Block(inner) => free(inner, hidden.clone(), names),
            one => {
                let mut found = HashSet::new();
                used(std::slice::from_ref(one), &mut found);
                names.extend(found.difference(&hidden));
            }
        }
    }
}

/// The name that a variable or parameter is printed under: another one where somebody has its own, or the printer has
/// such names for registers, labels and shared memory.
pub(super) fn own_name(name: &str, number: u32, taken: bool) -> String {
    let digits = name.strip_prefix('L').filter(|digits| !digits.is_empty());
    let label = digits.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    match taken || label || name.starts_with('%') || name == "shared_memory" {
        true => format!("_{}_{number}", name.trim_start_matches('%')),
        false => name.to_string(),
    }
}
