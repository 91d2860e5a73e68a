//! The data set: images of handwritten digits, some to train on and some held out.

use std::fmt;
use std::path::Path;

/// Pixels of an image: 8 x 8.
pub(crate) const PIXELS: usize = 64;
/// The digits.
pub(crate) const CLASSES: usize = 10;
/// The darkest pixel in the file.
const PIXEL_MAX: u8 = 16;
/// Mean and standard deviation of all pixels of the file, rounded: fixed, so that every worker scales alike. Centred
/// inputs keep training stable where a gradient arrives late because several workers push at once.
const PIXEL_MEAN: f32 = 5.0;
const PIXEL_DEVIATION: f32 = 6.0;
/// Every fifth image is held out.
const FOLDS: usize = 5;

/// Images and what they show.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Images {
    /// `[len, PIXELS]`, row-major, scaled to mean 0 and deviation 1.
    pub(crate) pixels: Vec<f32>,
    /// The digit of each image.
    pub(crate) labels: Vec<u8>,
}

/// The data set, split.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Digits {
    /// Images whose index modulo 5 is not 4.
    pub(crate) training: Images,
    /// Images whose index modulo 5 is 4: never trained on.
    pub(crate) held_out: Images,
}

/// Why there is no data.
#[derive(Debug)]
pub(crate) enum DataError {
    /// The file cannot be read.
    Read { path: String, source: std::io::Error },
    /// A line is not what it should be.
    Line { path: String, line: usize, why: String },
    /// There are not enough lines.
    Short { path: String, lines: usize },
}

impl fmt::Display for DataError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DataError::Read { path, source } => {
                write!(
                    f,
                    "cannot read `{path}`: {source}; grant its directory with `--dir HOST::/data:ro` or name it with `--data`"
                )
            }
            DataError::Line { path, line, why } => write!(f, "`{path}` line {line}: {why}"),
            DataError::Short { path, lines } => {
                write!(f, "`{path}` has {lines} lines, too few to train on and hold out: it needs {FOLDS}")
            }
        }
    }
}

impl Images {
    /// The number of images.
    pub(crate) fn len(&self) -> usize {
        self.labels.len()
    }

    /// The images of one part of several: a worker's own. Every image is in exactly one part.
    pub(crate) fn part(&self, part: usize, parts: usize) -> Images {
        let mut images = Images::default();
        for index in (part..self.len()).step_by(parts) {
            images.push(self.image(index), self.labels[index]);
        }
        images
    }

    /// The images of a minibatch, in the given order.
    pub(crate) fn batch(&self, indices: &[usize]) -> Images {
        let mut images = Images::default();
        for &index in indices {
            images.push(self.image(index), self.labels[index]);
        }
        images
    }

    fn image(&self, index: usize) -> &[f32] {
        &self.pixels[index * PIXELS..][..PIXELS]
    }

    fn push(&mut self, pixels: &[f32], label: u8) {
        self.pixels.extend_from_slice(pixels);
        self.labels.push(label);
    }
}

/// Reads the data set: lines of 64 pixels from 0 to 16 and a label from 0 to 9.
///
/// # Errors
/// The file cannot be read, a line is malformed, or there are fewer than five.
pub(crate) fn read(path: &Path) -> Result<Digits, DataError> {
    let shown = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|source| DataError::Read { path: shown.clone(), source })?;
    parse(&text, &shown)
}

fn parse(text: &str, path: &str) -> Result<Digits, DataError> {
    let mut digits = Digits { training: Images::default(), held_out: Images::default() };
    let mut lines = 0;
    for (index, line) in text.lines().enumerate() {
        let (pixels, label) =
            parse_line(line).map_err(|why| DataError::Line { path: path.to_owned(), line: index + 1, why })?;
        let images = if index % FOLDS == FOLDS - 1 { &mut digits.held_out } else { &mut digits.training };
        images.push(&pixels, label);
        lines = index + 1;
    }
    if lines < FOLDS {
        return Err(DataError::Short { path: path.to_owned(), lines });
    }
    Ok(digits)
}

fn parse_line(line: &str) -> Result<([f32; PIXELS], u8), String> {
    let mut pixels = [0.0; PIXELS];
    let mut fields = line.split(',');
    for (index, pixel) in pixels.iter_mut().enumerate() {
        let field = fields.next().ok_or_else(|| format!("has {index} values, expected {PIXELS} pixels and a label"))?;
        *pixel = (f32::from(number(field, PIXEL_MAX)?) - PIXEL_MEAN) / PIXEL_DEVIATION;
    }
    let field = fields.next().ok_or_else(|| format!("has {PIXELS} values, the label is missing"))?;
    let label = number(field, (CLASSES - 1) as u8)?;
    match fields.count() {
        0 => Ok((pixels, label)),
        more => Err(format!("has {} values, expected {}", PIXELS + 1 + more, PIXELS + 1)),
    }
}

fn number(field: &str, max: u8) -> Result<u8, String> {
    let value = field.trim().parse::<u8>().ok().filter(|value| *value <= max);
    value.ok_or_else(|| format!("`{field}` is not an integer from 0 to {max}"))
}

#[cfg(test)]
mod tests {
    use super::{DataError, Images, PIXELS, parse, read};
    use std::path::Path;

    fn lines(count: usize) -> String {
        (0..count).map(|index| format!("{}{}\n", "8,".repeat(PIXELS), index % 10)).collect()
    }

    #[test]
    fn every_fifth_image_is_held_out_and_pixels_are_scaled() {
        let digits = parse(&lines(12), "x").unwrap();
        assert_eq!(digits.training.labels, [0, 1, 2, 3, 5, 6, 7, 8, 0, 1]);
        assert_eq!(digits.held_out.labels, [4, 9]);
        assert!(digits.training.pixels.iter().all(|pixel| *pixel == (8.0 - 5.0) / 6.0));
        assert_eq!(digits.training.pixels.len(), 10 * PIXELS);
    }

    #[test]
    fn malformed_lines_are_refused_with_their_place() {
        let check = |text: &str, expected: &str| assert_eq!(parse(text, "x").unwrap_err().to_string(), expected);
        let good = lines(1);
        check(&format!("{good}1,2\n"), "`x` line 2: has 2 values, expected 64 pixels and a label");
        check(&"8,".repeat(PIXELS), "`x` line 1: `` is not an integer from 0 to 9");
        check(&"8,".repeat(PIXELS - 1), "`x` line 1: `` is not an integer from 0 to 16");
        check(&format!("17,{good}"), "`x` line 1: `17` is not an integer from 0 to 16");
        check(&format!("{},12", ["8"; PIXELS].join(",")), "`x` line 1: `12` is not an integer from 0 to 9");
        check(&format!("{},7", good.trim_end()), "`x` line 1: has 66 values, expected 65");
        check(&["8"; PIXELS].join(","), "`x` line 1: has 64 values, the label is missing");
        check(&lines(3), "`x` has 3 lines, too few to train on and hold out: it needs 5");
    }

    #[test]
    fn a_missing_file_says_how_to_grant_it() {
        let error = read(Path::new("no/such/file.csv")).unwrap_err();
        assert!(matches!(error, DataError::Read { .. }));
        assert!(error.to_string().contains("--dir"), "{error}");
    }

    #[test]
    fn parts_share_out_every_image_once() {
        let images = parse(&lines(17), "x").unwrap().training;
        let parts: Vec<Images> = (0..3).map(|part| images.part(part, 3)).collect();
        let mut labels: Vec<u8> = parts.iter().flat_map(|part| part.labels.clone()).collect();
        let mut expected = images.labels.clone();
        labels.sort_unstable();
        expected.sort_unstable();
        assert_eq!(labels, expected);
        assert!(parts.iter().all(|part| (4..=5).contains(&part.len())));
    }
}
