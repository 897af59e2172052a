// SPDX-License-Identifier: Apache-2.0
//! SVG plots of small families of curves.

use std::error::Error;
use std::path::Path;

use plotters::prelude::*;
use tombolo_core::sizes::size;

/// A named curve.
pub struct Curve {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// A range that was published, drawn as a band over the horizontal range given.
pub struct Band {
    pub x: (f64, f64),
    pub y: (f64, f64),
}

/// What a plot shows.
pub struct Plot {
    pub title: &'static str,
    pub x_label: &'static str,
    pub y_label: &'static str,
    /// The horizontal axis is in powers of two.
    pub log_x: bool,
    pub curves: Vec<Curve>,
    pub bands: Vec<Band>,
}

impl Plot {
    /// Writes the plot.
    pub fn save(&self, path: &Path) -> Result<(), String> {
        self.draw(path).map_err(|error| format!("cannot write {}: {error}", path.display()))
    }

    fn draw(&self, path: &Path) -> Result<(), Box<dyn Error>> {
        let scale = |x: f64| if self.log_x { x.log2() } else { x };
        let all = || self.curves.iter().flat_map(|curve| curve.points.iter());
        let low = all().map(|&(x, _)| scale(x)).fold(f64::INFINITY, f64::min);
        let high = all().map(|&(x, _)| scale(x)).fold(f64::NEG_INFINITY, f64::max);
        let band_top = self.bands.iter().map(|band| band.y.1);
        let top = all().map(|&(_, y)| y).chain(band_top).fold(0.0, f64::max) * 1.1;

        let area = SVGBackend::new(path, (760, 460)).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(self.title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(low..high, 0.0..top)?;
        let label = |x: &f64| {
            if self.log_x { size(x.exp2().round() as u64) } else { format!("{x:.0}") }
        };
        chart
            .configure_mesh()
            .x_desc(self.x_label)
            .y_desc(self.y_label)
            .x_label_formatter(&label)
            .draw()?;
        for band in &self.bands {
            let corners = [(scale(band.x.0), band.y.0), (scale(band.x.1), band.y.1)];
            let shape = Rectangle::new(corners, RGBColor(120, 120, 120).mix(0.3).filled());
            chart.draw_series([shape])?.label("published range").legend(|(x, y)| {
                let grey = RGBColor(120, 120, 120).mix(0.3);
                Rectangle::new([(x, y - 5), (x + 18, y + 5)], grey.filled())
            });
        }
        for (index, curve) in self.curves.iter().enumerate() {
            let colour = Palette99::pick(index).to_rgba();
            let points = || curve.points.iter().map(|&(x, y)| (scale(x), y));
            chart
                .draw_series(LineSeries::new(points(), colour.stroke_width(2)))?
                .label(&curve.name)
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2))
                });
            chart.draw_series(points().map(|at| Circle::new(at, 3, colour.filled())))?;
        }
        chart
            .configure_series_labels()
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.4))
            .position(SeriesLabelPosition::MiddleRight)
            .draw()?;
        area.present()?;
        Ok(())
    }
}
