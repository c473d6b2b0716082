//! Rows of tokens sorted by expert, and found again.

use std::ops::Range;

use format::Dense;
use op::{Adapted, Result, Routed, Team};

use super::rows;

/// Rows of tokens, sorted by expert.
#[derive(Debug, Default)]
pub(super) struct Sorted {
    /// For each row, which of the tokens' experts it is: token · top-k + j, of the piece.
    rows: Vec<u32>,
    /// For each of the tokens' experts, its row.
    places: Vec<u32>,
    /// Where each expert's rows begin, and where the last ones end.
    offsets: Vec<usize>,
    first: usize,
    top_k: usize,
}

/// The row of an expert that is nobody's here.
const NOWHERE: u32 = u32::MAX;

impl Sorted {
    /// A counting sort, which keeps tokens in order.
    pub(super) fn sort(&mut self, routed: &Routed, tokens: Range<usize>, experts: usize) {
        (self.first, self.top_k) = (tokens.start, routed.top_k());
        let ids = &routed.ids()[tokens.start * self.top_k..tokens.end * self.top_k];
        let mine = |id: u32| (id as usize) < experts;
        // Rows are counted one behind their expert, so that sums are where each begins; filling moves them to where the
        // next begins.
        self.offsets.clear();
        self.offsets.resize(experts + 1, 0);
        ids.iter().filter(|&&id| mine(id)).for_each(|&id| self.offsets[id as usize + 1] += 1);
        (0..experts).for_each(|expert| self.offsets[expert + 1] += self.offsets[expert]);
        self.rows.clear();
        self.rows.resize(self.offsets[experts], 0);
        self.places.clear();
        self.places.resize(ids.len(), NOWHERE);
        for (which, &id) in ids.iter().enumerate().filter(|(_, id)| mine(**id)) {
            let next = &mut self.offsets[id as usize];
            self.rows[*next] = which as u32;
            self.places[which] = *next as u32;
            *next += 1;
        }
        self.offsets.copy_within(..experts, 1);
        self.offsets[0] = 0;
    }

    /// Rows that there are.
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Where each expert's rows begin, and where the last ones end.
    pub(super) fn offsets(&self) -> &[usize] {
        &self.offsets
    }

    /// The row of an entry, if it is somebody's.
    pub(super) fn place(&self, entry: usize) -> Option<usize> {
        Some(self.places[entry] as usize).filter(|&place| place != NOWHERE as usize)
    }

    /// A token's rows in the order of its experts, with their weights; the token's number is that in the piece.
    pub(super) fn of<'a>(&'a self, token: usize, routed: &'a Routed) -> impl Iterator<Item = (usize, f32)> {
        let range = token * self.top_k..(token + 1) * self.top_k;
        let weights = &routed.weights()[(self.first + token) * self.top_k..];
        let places = self.places[range].iter().zip(weights).filter(|(place, _)| **place != NOWHERE);
        places.map(|(&place, &weight)| (place as usize, if routed.is_on_input() { 1.0 } else { weight }))
    }

    /// The adapter of every row's token.
    pub(super) fn adapters(&self, adapted: &Adapted) -> Vec<i32> {
        self.rows.iter().map(|&row| adapted.ids()[self.first + row as usize / self.top_k]).collect()
    }

    /// The tokens of all rows, multiplied with their weights where these multiply inputs.
    pub(super) fn gather(&self, tokens: &Dense<'_>, routed: &Routed, team: &Team) -> Result<Dense<'static>> {
        let token = |row: usize| self.rows[row] as usize / self.top_k;
        if !routed.is_on_input() {
            return rows::picked(tokens, self.len(), token, team);
        }
        let weights = &routed.weights()[self.first * self.top_k..];
        rows::widened(tokens, self.len(), |row| (token(row), weights[self.rows[row] as usize]), team)
    }
}

#[cfg(test)]
mod tests {
    use op::Ids;

    use super::*;

    #[test]
    fn rows_are_sorted_by_expert_and_tokens_stay_in_order() {
        let ids = [3, 1, /* */ 1, 9, /* */ -1, 7, /* */ 0, 1, /* */ 1, 3];
        let weights: Vec<f32> = (0..10).map(|i| i as f32).collect();
        let routed = Routed::given(Ids::I32(&ids), &weights, 5, 4).unwrap();
        let mut sorted = Sorted::default();
        for first in [0, 1] {
            sorted.sort(&routed, first..5, 4);
            let tokens = |expert: usize| {
                let rows = &sorted.rows[sorted.offsets()[expert]..sorted.offsets()[expert + 1]];
                rows.iter().map(|&row| first + row as usize / sorted.top_k).collect::<Vec<_>>()
            };
            let expected: [&[usize]; 4] = [&[3], &[0, 1, 3, 4], &[], &[0, 4]];
            for (expert, expected) in expected.iter().enumerate() {
                let expected: Vec<usize> = expected.iter().copied().filter(|&token| token >= first).collect();
                assert_eq!(tokens(expert), expected, "expert {expert} from token {first}");
            }
            assert_eq!(sorted.of(2 - first, &routed).count(), 0, "nobody's");
            let last: Vec<(usize, f32)> = sorted.of(4 - first, &routed).collect();
            assert_eq!(last, [(sorted.offsets()[2] - 1, 8.0), (sorted.len() - 1, 9.0)]);
        }
    }
}
