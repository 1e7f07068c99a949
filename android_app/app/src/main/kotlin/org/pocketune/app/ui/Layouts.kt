package org.pocketune.app.ui

import android.content.Context
import android.util.AttributeSet
import android.view.LayoutInflater
import android.view.View
import android.view.View.MeasureSpec
import android.view.ViewGroup
import android.widget.LinearLayout
import android.widget.ScrollView
import kotlin.math.max
import kotlin.math.min
import org.pocketune.app.R

/** A vertical layout that is never wider than a line of text should be, in the middle of what there is. */
class Column(context: Context, attributes: AttributeSet) : LinearLayout(context, attributes) {
    private val edge = resources.getDimensionPixelSize(R.dimen.edge)
    private val widest = resources.getDimensionPixelSize(R.dimen.widest)

    override fun onMeasure(widthMeasureSpec: Int, heightMeasureSpec: Int) {
        val side = max(edge, (MeasureSpec.getSize(widthMeasureSpec) - widest) / 2)
        setPadding(side, paddingTop, side, paddingBottom)
        super.onMeasure(widthMeasureSpec, heightMeasureSpec)
    }
}

/** Scrolls what is higher than half of the room there is, so that the other half is always left. */
class AtMostHalf(context: Context, attributes: AttributeSet) : ScrollView(context, attributes) {
    override fun onMeasure(widthMeasureSpec: Int, heightMeasureSpec: Int) {
        val half = MeasureSpec.getSize(heightMeasureSpec) / 2
        super.onMeasure(widthMeasureSpec, MeasureSpec.makeMeasureSpec(half, MeasureSpec.AT_MOST))
    }
}

/** Children side by side, in as many lines as they need. */
class Flow(context: Context, attributes: AttributeSet) : ViewGroup(context, attributes) {
    private val gap = resources.getDimensionPixelSize(R.dimen.half_gap)

    override fun onMeasure(widthMeasureSpec: Int, heightMeasureSpec: Int) {
        val width = MeasureSpec.getSize(widthMeasureSpec)
        shown().forEach {
            val wanted = it.layoutParams
            it.measure(
                getChildMeasureSpec(MeasureSpec.makeMeasureSpec(width, MeasureSpec.AT_MOST), 0, wanted.width),
                getChildMeasureSpec(MeasureSpec.makeMeasureSpec(0, MeasureSpec.UNSPECIFIED), 0, wanted.height),
            )
        }
        setMeasuredDimension(width, place(width) { _, _, _ -> })
    }

    override fun onLayout(changed: Boolean, left: Int, top: Int, right: Int, bottom: Int) {
        place(width) { child, x, y -> child.layout(x, y, x + child.measuredWidth, y + child.measuredHeight) }
    }

    /** Tells where each child goes, and returns the height. */
    private fun place(width: Int, at: (View, Int, Int) -> Unit): Int {
        var x = 0
        var y = 0
        var line = 0
        for (child in shown()) {
            if (x > 0 && x + child.measuredWidth > width) {
                x = 0
                y += line + gap
                line = 0
            }
            at(child, x, y)
            x += child.measuredWidth + gap
            line = max(line, child.measuredHeight)
        }
        return y + line
    }

    private fun shown(): List<View> = (0 until childCount).map(::getChildAt).filter { it.visibility != GONE }
}

/** Makes the children one for each item, keeping those that there are, and lets [bind] say what each shows. */
fun <T> ViewGroup.fill(layout: Int, items: List<T>, bind: (View, T) -> Unit) {
    while (childCount > items.size) removeViewAt(childCount - 1)
    while (childCount < items.size) addView(LayoutInflater.from(context).inflate(layout, this, false))
    items.forEachIndexed { i, item -> bind(getChildAt(i), item) }
}

/** Shows a view, or takes its place away too. */
fun View.showIf(shown: Boolean) {
    visibility = if (shown) View.VISIBLE else View.GONE
}

/** The side of a square that fits: as wide as allowed, and not so high that it fills the window. */
internal fun View.squareSide(widthMeasureSpec: Int): Int {
    val share = (resources.displayMetrics.heightPixels * SHARE_OF_HEIGHT).toInt()
    return min(MeasureSpec.getSize(widthMeasureSpec), max(share, resources.getDimensionPixelSize(R.dimen.least_pad)))
}

private const val SHARE_OF_HEIGHT = 0.38
