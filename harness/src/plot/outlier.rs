//! Outliers: values so large that an axis which shows all of them hides the others.

/// What is more than so many times the median is an outlier.
const TIMES: f64 = 3.0;

/// The largest of `values` that is no outlier is not above this. Without a median that is above 0 nothing is one.
pub fn limit(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = match values.len() {
        0 => return f64::INFINITY,
        // Of two values none is an outlier: neither is more than three times their mean.
        count if count % 2 == 0 => (values[count / 2 - 1] + values[count / 2]) / 2.0,
        count => values[count / 2],
    };
    if middle > 0.0 { middle * TIMES } else { f64::INFINITY }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_three_times_the_median_is_an_outlier() {
        assert_eq!(limit([9.0, 1.0, 2.0]), 6.0);
        assert_eq!(limit([1.0, 100.0, 1.0, 2.0]), 4.5);
        assert_eq!(limit([1.0, 2.0, 300.0, 1.5, 1.0]), 4.5);
    }

    #[test]
    fn few_values_have_no_outlier() {
        assert_eq!(limit([]), f64::INFINITY);
        assert_eq!(limit([0.0, 0.0, 7.0]), f64::INFINITY);
        for pair in [[1.0, 1e9], [5.0, 5.0], [0.0, 3.0]] {
            assert!(pair.iter().all(|value| *value <= limit(pair)), "{pair:?}");
        }
    }

    #[test]
    fn more_than_half_of_the_values_are_shown() {
        for count in 1..40 {
            let values: Vec<f64> = (0..count).map(|nth| 2f64.powi(nth)).collect();
            let end = limit(values.clone());
            let shown = values.iter().filter(|value| **value <= end).count();
            assert!(shown * 2 > values.len(), "{shown} of {count}");
        }
    }
}
