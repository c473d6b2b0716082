//! Faces of judges: a hammerhead from above, whose hammer, brows and mouth differ from judge to judge.

/// The face of the judge with this number. It is decoration, so it has no title: the name stands beside it.
pub fn face(number: usize) -> String {
    // The hammer's bow, the slant of the brows, and the mouth: three, three and three, so that no two of a court look
    // alike before the tenth.
    let bow = [9.0, 15.0, 4.0][number % 3];
    let slant = [0.0, 2.5, -2.5][(number / 3 + number) % 3];
    let mouth = ["M23 47q9 6 18 0", "M23 49h18", "M23 50q9 -6 18 0"][(number / 9 + 2 * number) % 3];
    let brow = |from: f64, inner: f64| {
        format!("<path class=\"brow\" d=\"M{from} {}L{inner} {}\"/>", 13.5 - slant, 13.5 + slant)
    };
    format!(
        "<svg class=\"face tone{}\" viewBox=\"0 0 64 64\" aria-hidden=\"true\">\
         <path class=\"skin\" d=\"M2 20Q32 {bow} 62 20Q63 28 56 30Q46 31 44 40L41 58Q32 63 23 58L20 40Q18 31 8 30Q1 28 2 20Z\"/>\
         <circle class=\"eye\" cx=\"9\" cy=\"23\" r=\"4\"/><circle class=\"eye\" cx=\"55\" cy=\"23\" r=\"4\"/>\
         <circle class=\"pupil\" cx=\"10\" cy=\"23.5\" r=\"1.8\"/><circle class=\"pupil\" cx=\"54\" cy=\"23.5\" r=\"1.8\"/>\
         {}{}<path class=\"gill\" d=\"M27 33v6M32 34v6M37 33v6\"/><path class=\"mouth\" d=\"{mouth}\"/></svg>",
        number % 6,
        brow(4.0, 15.0),
        brow(60.0, 49.0),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_judges_of_a_court_look_alike() {
        let faces: std::collections::BTreeSet<String> = (0..6).map(face).collect();
        assert_eq!(faces.len(), 6);
    }
}
