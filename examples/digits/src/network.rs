//! The network: 64 pixels, one hidden layer of `tanh` units, ten digits; softmax and cross-entropy. Forward and backward.
//!
//! Pure numbers, no cluster. A batch is computed as a whole: its work is five products of matrices, which the SDK has the host
//! compute where they are large enough.

use crate::data::{CLASSES, Images, PIXELS};
use crate::random::Random;
use dchost_guest::Result;
use dchost_guest::linalg::Matmul;

/// Weights and biases, or a gradient with respect to them. Row-major.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Parameters {
    /// From pixels to hidden units, `[PIXELS, hidden]`.
    pub(crate) hidden_weights: Vec<f32>,
    /// `[hidden]`.
    pub(crate) hidden_biases: Vec<f32>,
    /// From hidden units to digits, `[CLASSES, hidden]`.
    pub(crate) output_weights: Vec<f32>,
    /// `[CLASSES]`.
    pub(crate) output_biases: Vec<f32>,
}

impl Parameters {
    /// Names and shapes, in the order of [`Parameters::tensors`].
    pub(crate) fn shapes(hidden: usize) -> [(&'static str, Vec<usize>); 4] {
        [
            ("hidden/weights", vec![PIXELS, hidden]),
            ("hidden/biases", vec![hidden]),
            ("output/weights", vec![CLASSES, hidden]),
            ("output/biases", vec![CLASSES]),
        ]
    }

    /// All zero.
    pub(crate) fn zeros(hidden: usize) -> Self {
        Parameters {
            hidden_weights: vec![0.0; PIXELS * hidden],
            hidden_biases: vec![0.0; hidden],
            output_weights: vec![0.0; CLASSES * hidden],
            output_biases: vec![0.0; CLASSES],
        }
    }

    /// Random weights whose size fits the number of inputs and outputs; zero biases.
    ///
    /// # Source
    /// Glorot, Bengio: "Understanding the difficulty of training deep feedforward neural networks", 2010, equation 16.
    pub(crate) fn random(hidden: usize, random: &mut Random) -> Self {
        let mut parameters = Parameters::zeros(hidden);
        let mut fill = |weights: &mut [f32], inputs: usize, outputs: usize| {
            let limit = (6.0 / (inputs + outputs) as f32).sqrt();
            weights.fill_with(|| random.uniform(limit));
        };
        fill(&mut parameters.hidden_weights, PIXELS, hidden);
        fill(&mut parameters.output_weights, hidden, CLASSES);
        parameters
    }

    /// The four tensors.
    pub(crate) fn tensors(&self) -> [&[f32]; 4] {
        [&self.hidden_weights, &self.hidden_biases, &self.output_weights, &self.output_biases]
    }

    /// The four tensors, to be changed.
    pub(crate) fn tensors_mut(&mut self) -> [&mut Vec<f32>; 4] {
        [&mut self.hidden_weights, &mut self.hidden_biases, &mut self.output_weights, &mut self.output_biases]
    }

    /// Multiplies every number: a gradient becomes a step.
    pub(crate) fn scale(&mut self, factor: f32) {
        for value in self.tensors_mut().into_iter().flatten() {
            *value *= factor;
        }
    }

    fn hidden(&self) -> usize {
        self.hidden_biases.len()
    }

    /// The hidden units of each image, `[images, hidden]`.
    fn activate(&self, images: &Images) -> Result<Vec<f32>> {
        let mut units = self.hidden_biases.repeat(images.len());
        let product = Matmul::new(images.len(), PIXELS, self.hidden()).beta(1.0);
        product.run(&images.pixels, &self.hidden_weights, &mut units)?;
        units.iter_mut().for_each(|unit| *unit = unit.tanh());
        Ok(units)
    }

    /// The score of each digit for each image, `[images, CLASSES]`.
    fn scores(&self, units: &[f32], images: usize) -> Result<Vec<f32>> {
        let mut scores = self.output_biases.repeat(images);
        let product = Matmul::new(images, self.hidden(), CLASSES).transpose_b().beta(1.0);
        product.run(units, &self.output_weights, &mut scores)?;
        Ok(scores)
    }

    /// The mean cross-entropy of the images, and its gradient with respect to the parameters.
    pub(crate) fn loss_and_gradient(&self, images: &Images) -> Result<(f32, Parameters)> {
        let (count, hidden) = (images.len(), self.hidden());
        let units = self.activate(images)?;
        let mut errors = self.scores(&units, count)?;
        let share = 1.0 / count as f32;
        let mut loss = 0.0;
        for (errors, &label) in errors.as_chunks_mut::<CLASSES>().0.iter_mut().zip(&images.labels) {
            *errors = softmax(*errors);
            // A probability that rounds to zero would make the loss infinite and hide how training goes.
            loss -= errors[usize::from(label)].max(f32::MIN_POSITIVE).ln();
            errors[usize::from(label)] -= 1.0;
            errors.iter_mut().for_each(|error| *error *= share);
        }
        let mut delta = vec![0.0; count * hidden];
        Matmul::new(count, CLASSES, hidden).run(&errors, &self.output_weights, &mut delta)?;
        delta.iter_mut().zip(&units).for_each(|(delta, unit)| *delta *= 1.0 - unit * unit);

        let mut gradient = Parameters::zeros(hidden);
        let by_image = |rows, columns| Matmul::new(rows, count, columns).transpose_a();
        by_image(PIXELS, hidden).run(&images.pixels, &delta, &mut gradient.hidden_weights)?;
        by_image(CLASSES, hidden).run(&errors, &units, &mut gradient.output_weights)?;
        add_rows(&mut gradient.hidden_biases, &delta);
        add_rows(&mut gradient.output_biases, &errors);
        Ok((loss * share, gradient))
    }

    /// The part of the images whose digit has the highest score, from 0 to 1.
    pub(crate) fn accuracy(&self, images: &Images) -> Result<f64> {
        let scores = self.scores(&self.activate(images)?, images.len())?;
        let mut right = 0_u32;
        for (scores, &label) in scores.as_chunks::<CLASSES>().0.iter().zip(&images.labels) {
            let best = (0..CLASSES).fold(0, |best, digit| if scores[digit] > scores[best] { digit } else { best });
            right += u32::from(best == usize::from(label));
        }
        Ok(f64::from(right) / images.len() as f64)
    }
}

/// Adds each row of a matrix.
fn add_rows(sums: &mut [f32], rows: &[f32]) {
    for row in rows.chunks_exact(sums.len()) {
        sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
    }
}

/// Probabilities of scores; the highest is taken off first, so that no power overflows.
fn softmax(scores: [f32; CLASSES]) -> [f32; CLASSES] {
    let highest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers = scores.map(|score| (score - highest).exp());
    let sum: f32 = powers.iter().sum();
    powers.map(|power| power / sum)
}

#[cfg(test)]
mod tests {
    use super::{Parameters, softmax};
    use crate::data::{CLASSES, Images, PIXELS};
    use crate::random::Random;

    /// Images of noise: the gradient does not care.
    fn noise(count: usize, random: &mut Random) -> Images {
        Images {
            pixels: (0..count * PIXELS).map(|_| random.uniform(1.0).max(0.0)).collect(),
            labels: (0..count).map(|index| (index % CLASSES) as u8).collect(),
        }
    }

    /// Compares the gradient with the slope of the loss between two close points, along random directions and for single
    /// parameters. In f32 the loss has 24 bits, so that a slope over a step of 0.01 is good to about three digits.
    #[test]
    fn gradient_is_the_slope_of_the_loss() {
        let mut random = Random::new(11, 0);
        for hidden in [3, 40] {
            let images = noise(7, &mut random);
            let parameters = Parameters::random(hidden, &mut random);
            let (_, gradient) = parameters.loss_and_gradient(&images).unwrap();
            for tensor in 0..4 {
                let len = gradient.tensors()[tensor].len();
                let direction: Vec<f32> = (0..len).map(|_| random.uniform(1.0)).collect();
                let norm = direction.iter().map(|value| value * value).sum::<f32>().sqrt();
                let direction: Vec<f32> = direction.iter().map(|value| value / norm).collect();
                let step = 0.01_f32;
                let moved = |scale: f32| {
                    let mut moved = parameters.clone();
                    for (value, change) in moved.tensors_mut()[tensor].iter_mut().zip(&direction) {
                        *value += scale * change;
                    }
                    f64::from(moved.loss_and_gradient(&images).unwrap().0)
                };
                let slope = (moved(step) - moved(-step)) / f64::from(2.0 * step);
                let along: f64 = gradient.tensors()[tensor].iter().zip(&direction).map(|(a, b)| f64::from(a * b)).sum();
                assert!(
                    (slope - along).abs() < 1e-3 + 0.01 * along.abs(),
                    "hidden {hidden}, tensor {tensor}: slope {slope}, gradient {along}"
                );
                assert!(gradient.tensors()[tensor].iter().any(|value| value.abs() > 1e-4), "tensor {tensor} is flat");
            }
        }
    }

    #[test]
    fn gradient_of_a_batch_is_the_mean_of_its_images() {
        let mut random = Random::new(5, 0);
        let images = noise(4, &mut random);
        let parameters = Parameters::random(8, &mut random);
        let (loss, whole) = parameters.loss_and_gradient(&images).unwrap();
        let single: Vec<_> =
            (0..4).map(|index| parameters.loss_and_gradient(&images.batch(&[index])).unwrap()).collect();
        let mean = single.iter().map(|(loss, _)| loss).sum::<f32>() / 4.0;
        assert!((loss - mean).abs() < 1e-5, "{loss} {mean}");
        for (index, value) in whole.hidden_weights.iter().enumerate() {
            let mean = single.iter().map(|(_, gradient)| gradient.hidden_weights[index]).sum::<f32>() / 4.0;
            assert!((value - mean).abs() < 1e-6, "{index}: {value} {mean}");
        }
    }

    #[test]
    fn softmax_stands_large_scores() {
        let mut scores = [-1e30; CLASSES];
        scores[3] = 1e30;
        let probabilities = softmax(scores);
        assert_eq!(probabilities[3], 1.0);
        assert_eq!(probabilities.iter().sum::<f32>(), 1.0);
    }

    #[test]
    fn accuracy_counts_the_highest_score() {
        let mut parameters = Parameters::zeros(2);
        parameters.output_biases[6] = 1.0;
        let images = Images { pixels: vec![0.0; 4 * PIXELS], labels: vec![6, 1, 6, 6] };
        assert_eq!(parameters.accuracy(&images).unwrap(), 0.75);
    }
}
