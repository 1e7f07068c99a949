@file:Suppress("DEPRECATION") // the platform's fragments: androidx, which has those of today, is not used here

package org.pocketune.app.ui

import android.app.Activity
import android.app.AlertDialog
import android.app.Dialog
import android.app.DialogFragment
import android.os.Bundle
import android.view.View
import android.widget.EditText
import org.pocketune.app.PocketuneApp
import org.pocketune.app.R
import org.pocketune.app.core.Event

/** Asks for the name of a symbol. A fragment, so that a rotation loses neither the window nor what is typed in it. */
class NameDialog : DialogFragment() {
    override fun onCreateDialog(savedInstanceState: Bundle?): Dialog {
        val renamed = arguments.getInt(LABEL)
        val content = View.inflate(activity, R.layout.name, null)
        val name = content.findViewById<EditText>(R.id.name)
        if (savedInstanceState == null) name.setText(arguments.getString(PRESENT))
        return AlertDialog.Builder(activity)
            .setTitle(if (renamed == NEW) R.string.symbol_title else R.string.rename)
            .setView(content)
            .setPositiveButton(R.string.ok) { _, _ ->
                val typed = name.text.toString()
                val event = if (renamed == NEW) Event.AddSymbol(typed) else Event.RenameSymbol(renamed, typed)
                (activity.application as PocketuneApp).tell(event)
            }
            .setNegativeButton(R.string.cancel, null)
            .create()
    }

    companion object {
        private const val LABEL = "label"
        private const val PRESENT = "present"
        private const val NEW = -1

        fun askForNew(window: Activity) = ask(window, NEW, "")

        fun askToRename(window: Activity, label: Int, present: String) = ask(window, label, present)

        private fun ask(window: Activity, label: Int, present: String) {
            val dialog = NameDialog()
            dialog.arguments = Bundle().apply {
                putInt(LABEL, label)
                putString(PRESENT, present)
            }
            dialog.show(window.fragmentManager, "name")
        }
    }
}
