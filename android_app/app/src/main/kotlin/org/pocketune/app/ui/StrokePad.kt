package org.pocketune.app.ui

import android.annotation.SuppressLint
import android.content.Context
import android.graphics.Canvas
import android.graphics.Paint
import android.util.AttributeSet
import android.view.MotionEvent
import android.view.View
import kotlin.math.min
import kotlin.math.roundToInt
import org.pocketune.app.R
import org.pocketune.app.core.Point
import org.pocketune.app.core.Stroke

/** Side of the square in which strokes live, whatever its size on the screen. */
const val PAPER = 1000f

/** A sheet to write on with the finger. */
class StrokePad(context: Context, attributes: AttributeSet) : View(context, attributes) {
    private val ink = ink(context)
    private val hintPaint = Paint(Paint.ANTI_ALIAS_FLAG).apply {
        color = context.getColor(R.color.text_secondary)
        textAlign = Paint.Align.CENTER
    }
    private val hintSize = resources.getDimension(R.dimen.hint)
    private val growing = mutableListOf<Point>()
    private var began = 0L
    private var finger = 0

    /** What is told of each stroke when the finger leaves the sheet. */
    var onStroke: (Stroke) -> Unit = {}

    /** What is written already. */
    var strokes: List<Stroke> = emptyList()
        set(value) {
            field = value
            invalidate()
        }

    /** Shown on an empty sheet. */
    var hint: String = ""
        set(value) {
            field = value
            invalidate()
        }

    override fun onMeasure(widthMeasureSpec: Int, heightMeasureSpec: Int) {
        val isGiven = MeasureSpec.getMode(heightMeasureSpec) == MeasureSpec.EXACTLY
        val high = if (isGiven) MeasureSpec.getSize(heightMeasureSpec) else squareSide(widthMeasureSpec)
        setMeasuredDimension(MeasureSpec.getSize(widthMeasureSpec), high)
    }

    /** The square in the middle of the sheet: its side and upper left corner. */
    private val side get() = min(width, height).toFloat()
    private val marginX get() = (width - side) / 2
    private val marginY get() = (height - side) / 2

    @SuppressLint("ClickableViewAccessibility") // a drawing is not a click
    override fun onTouchEvent(event: MotionEvent): Boolean {
        when (event.actionMasked) {
            MotionEvent.ACTION_DOWN -> begin(event)
            MotionEvent.ACTION_MOVE -> follow(event)
            MotionEvent.ACTION_UP -> end()
            MotionEvent.ACTION_CANCEL -> growing.clear()
        }
        invalidate()
        return true
    }

    private fun begin(event: MotionEvent) {
        parent.requestDisallowInterceptTouchEvent(true)
        finger = event.getPointerId(0)
        if (strokes.isEmpty()) began = event.eventTime
        growing += point(event.x, event.y, event.eventTime)
    }

    private fun follow(event: MotionEvent) {
        val index = event.findPointerIndex(finger)
        if (index < 0) return
        for (i in 0 until event.historySize) {
            growing += point(event.getHistoricalX(index, i), event.getHistoricalY(index, i), event.getHistoricalEventTime(i))
        }
        growing += point(event.getX(index), event.getY(index), event.eventTime)
    }

    private fun end() {
        val stroke = growing.toList()
        growing.clear()
        if (stroke.isNotEmpty()) onStroke(stroke)
    }

    private fun point(x: Float, y: Float, time: Long) =
        Point(tenth((x - marginX) / side * PAPER), tenth((y - marginY) / side * PAPER), (time - began).toInt())

    /** The finger is not more exact than that. */
    private fun tenth(value: Float): Double = (value * 10).roundToInt() / 10.0

    override fun onDraw(canvas: Canvas) {
        if (strokes.isEmpty() && growing.isEmpty()) {
            hintPaint.textSize = hintSize
            hintPaint.textSize *= min(1f, HINT_SHARE * width / hintPaint.measureText(hint))
            canvas.drawText(hint, width / 2f, height / 2f, hintPaint)
        }
        canvas.translate(marginX, marginY)
        canvas.drawStrokes(strokes + listOf(growing), side, ink)
    }

    private companion object {
        /** How much of the width the hint may take before it is made smaller. */
        const val HINT_SHARE = 0.9f
    }
}

/** A drawing, small. */
class DrawingView(context: Context, attributes: AttributeSet) : View(context, attributes) {
    private val ink = ink(context)

    var strokes: List<Stroke> = emptyList()
        set(value) {
            field = value
            invalidate()
        }

    /** Drawn paler: kept aside. */
    var pale: Boolean = false
        set(value) {
            field = value
            ink.alpha = if (value) PALE else OPAQUE
            invalidate()
        }

    override fun onDraw(canvas: Canvas) = canvas.drawStrokes(strokes, width.toFloat(), ink)

    private companion object {
        const val PALE = 110
        const val OPAQUE = 255
    }
}

private fun ink(context: Context) = Paint(Paint.ANTI_ALIAS_FLAG).apply {
    color = context.getColor(R.color.ink)
    style = Paint.Style.STROKE
    strokeCap = Paint.Cap.ROUND
    strokeJoin = Paint.Join.ROUND
}

private fun Canvas.drawStrokes(strokes: List<Stroke>, side: Float, ink: Paint) {
    val scale = side / PAPER
    ink.strokeWidth = side * INK_SHARE
    for (stroke in strokes) {
        stroke.zipWithNext { a, b ->
            drawLine(a.x.toFloat() * scale, a.y.toFloat() * scale, b.x.toFloat() * scale, b.y.toFloat() * scale, ink)
        }
        if (stroke.size == 1) drawPoint(stroke[0].x.toFloat() * scale, stroke[0].y.toFloat() * scale, ink)
    }
}

private const val INK_SHARE = 0.045f
