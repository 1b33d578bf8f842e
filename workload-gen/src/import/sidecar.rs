//! What a recording's own script knows and the snapshot does not say: the memory limit and the final statistics.

use super::ImportError;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The JSON file beside a snapshot: `NAME.json` for `NAME.pickle`, compressed or not. Every key is optional, and
/// others are ignored.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Sidecar {
    /// The allocator settings, as PyTorch writes them.
    pub conf: String,
    /// The memory limit in GiB that was set; 0 is none.
    pub fraction_gib: f64,
    /// Total bytes of the device.
    pub total: Option<u64>,
    /// `torch.cuda.memory_stats()` at the end.
    pub stats: BTreeMap<String, i64>,
}

impl Sidecar {
    /// Where the sidecar of a snapshot would be.
    fn path_beside(snapshot: &Path) -> PathBuf {
        let mut path = snapshot.to_path_buf();
        for suffixes in [["zst", "gz"], ["pickle", "pkl"]] {
            if path.extension().is_some_and(|suffix| suffixes.iter().any(|known| suffix == *known)) {
                path.set_extension("");
            }
        }
        path.as_mut_os_string().push(".json");
        path
    }

    /// The sidecar of a snapshot, if it has one.
    pub fn beside(snapshot: &Path) -> Result<Option<Sidecar>, ImportError> {
        let path = Sidecar::path_beside(snapshot);
        let error = |why: String| ImportError::Sidecar { file: crate::plain_path(&path), why };
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            // A name that is too long for the file system is that of no file.
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::InvalidFilename) => return Ok(None),
            Err(e) => return Err(error(e.to_string())),
        };
        // The deserialiser would take a list for the fields in their order.
        if !bytes.trim_ascii_start().starts_with(b"{") {
            return Err(error("it is no JSON object".into()));
        }
        match serde_json::from_slice::<Sidecar>(&bytes) {
            Ok(mut sidecar) if sidecar.fraction_gib >= 0.0 => {
                // Some scripts write 0 for what they do not know.
                sidecar.total = sidecar.total.filter(|&total| total > 0);
                Ok(Some(sidecar))
            }
            Ok(sidecar) => Err(error(format!("a memory limit of {} GiB", sidecar.fraction_gib))),
            Err(e) => Err(error(e.to_string())),
        }
    }

    /// The memory limit in bytes, computed as PyTorch computes it from the fraction of the device that the limit is.
    /// A fraction of 1 or more is none.
    pub fn limit_bytes(&self) -> Option<u64> {
        let total = self.total? as f64;
        let fraction = self.fraction_gib * (1u64 << 30) as f64 / total;
        (fraction > 0.0 && fraction < 1.0).then_some((fraction * total) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lies_beside_whatever_the_compression() {
        for name in ["a/gnn.cap4g.pickle", "a/gnn.cap4g.pickle.zst", "a/gnn.cap4g.pkl.gz", "a/gnn.cap4g"] {
            assert_eq!(Sidecar::path_beside(Path::new(name)), Path::new("a/gnn.cap4g.json"));
        }
    }

    #[test]
    fn limit_goes_through_the_fraction() {
        let cap = |fraction_gib, total| Sidecar { fraction_gib, total, ..Sidecar::default() }.limit_bytes();
        assert_eq!(
            cap(4.0, Some(150_109_880_320)),
            Some((4.0 * 1073741824.0 / 150109880320.0 * 150109880320.0) as u64)
        );
        assert_eq!(cap(4.0, Some(4 << 30)), None);
        assert_eq!(cap(0.0, Some(1 << 40)), None);
        assert_eq!(cap(4.0, None), None);
    }

    #[test]
    fn reads_what_it_knows() {
        let folder = tempfile::tempdir().unwrap();
        let snapshot = folder.path().join("x.pickle.zst");
        assert_eq!(Sidecar::beside(&snapshot).unwrap(), None);
        let json = folder.path().join("x.json");
        std::fs::write(&json, r#"{"conf": "a:1", "total": 7, "stats": {"n": -1}, "error": null, "other": []}"#)
            .unwrap();
        let sidecar = Sidecar::beside(&snapshot).unwrap().unwrap();
        assert_eq!((sidecar.conf.as_str(), sidecar.total, sidecar.stats["n"]), ("a:1", Some(7), -1));
        std::fs::write(&json, r#"{"total": 0}"#).unwrap();
        assert_eq!(Sidecar::beside(&snapshot).unwrap().unwrap().total, None);
        std::fs::write(&json, "[]").unwrap();
        let error = Sidecar::beside(&snapshot).unwrap_err().to_string();
        assert!(error.contains("x.json: it is no JSON object"), "{error}");
        std::fs::write(&json, "{").unwrap();
        let error = Sidecar::beside(&snapshot).unwrap_err().to_string();
        assert!(error.contains("x.json") && error.contains("line 1"), "{error}");
        std::fs::write(&json, r#"{"fraction_gib": -1}"#).unwrap();
        assert!(Sidecar::beside(&snapshot).unwrap_err().to_string().contains("-1 GiB"));
        let longest = folder.path().join("x".repeat(255));
        assert_eq!(Sidecar::beside(&longest).unwrap(), None, "with .json behind it, no file could be called that");
    }
}
